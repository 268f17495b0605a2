"""Every explanation of `sessiond doctor`, with the state that it explains brought about."""

import asyncio
import contextlib
import ctypes
import json
import mmap
import sys

import pytest
from typer.testing import CliRunner

from sessiond.__main__ import build_cli
from tests.gateway import real_stack as stacks
from tests.gateway.real_stack import real_stack

MIB = 2**20
BUSY_LOOP = "import time; time.sleep(600)"


@pytest.fixture
async def stack(tmp_path, monkeypatch):
    """A server of this process, on a machine where no other was."""
    from sessiond.store import migrate

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"sqlite+aiosqlite:///{tmp_path / 'doctor.db'}"
    await asyncio.to_thread(migrate.upgrade, url)
    loops = []
    make = stacks.loop_of

    def keeping(*parts):
        loop, info = make(*parts)
        loops.append(loop)
        return loop, info

    monkeypatch.setattr(stacks, "loop_of", keeping)
    async with real_stack(url) as stack:
        stack.pool = loops[0]._memory.pool
        yield stack


async def doctor(stack, *more):
    """What the command says: its exit code, its findings by code, and all of it."""
    command = ["doctor", "--url", stack.served.http_url, "--json", *more]
    result = await asyncio.to_thread(CliRunner().invoke, build_cli(), command)
    report = json.loads(result.output)
    return result.exit_code, {one["code"]: one for one in report["findings"]}, report


async def test_at_rest_there_is_nothing_to_explain(stack):
    code, found, report = await doctor(stack)
    assert code == 0
    # this process holds all of the test suite, and other tests' engines may just be leaving
    assert found.keys() <= {"host_memory", "allocator_cache", "left_behind"}, found
    assert report["gateway"]["sockets"] == 0
    assert report["engine"]["rss_bytes"] > 0


async def test_blocks_that_nobody_has_are_a_fault(stack):
    blocks = stack.pool.try_take(3)
    code, found, _ = await doctor(stack)
    stack.pool.give(blocks)
    assert code == 1
    assert found["kv_not_freed"]["what"].startswith("3 blocks are counted as used")
    assert found["kv_not_freed"]["fault"]
    assert "report" in found["kv_not_freed"]["do"]


async def test_sessions_that_nobody_ends_are_told(stack):
    async with contextlib.AsyncExitStack() as sockets:
        for number in range(8):
            socket = await sockets.enter_async_context(stack.served.connect())
            text = f"{number}" * 440
            await socket.send(json.dumps({"type": "response.create", "input": text}))
            while json.loads(await socket.recv())["type"] != "response.completed":
                pass
        code, found, report = await doctor(stack)
    assert code == 0
    assert report["sessions"]["idle"] == 8
    what = found["sessions_piling_up"]["what"]
    assert "8 sessions in the engine (8 idle, 0 parked), 8 attached or held" in what
    assert "never (--session-ttl is 0)" in what
    await stack.idle()
    assert "sessions_piling_up" not in (await doctor(stack))[1]


async def test_memory_that_the_heap_keeps_is_told_apart_from_what_is_used(stack):
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("another C library")
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(64 * 1024) for _ in range(4 * 1024)]
    for block in blocks[:-1]:  # the last one holds all those before it
        libc.free(block)
    try:
        code, found, report = await doctor(stack)
    finally:
        libc.free(blocks[-1])
        libc.malloc_trim(0)
    assert code == 0
    assert report["gateway"]["heap_free_bytes"] > 200 * MIB
    assert "keeps" in found["allocator_cache"]["what"]
    assert "no leak" in found["allocator_cache"]["means"]


async def test_memory_of_no_known_part_is_told(stack):
    _, _, before = await doctor(stack)
    pages = mmap.mmap(-1, 512 * MIB)
    pages.write(b"\1" * (512 * MIB))
    try:
        _, found, after = await doctor(stack)
    finally:
        pages.close()
    assert after["gateway"]["rss_bytes"] - before["gateway"]["rss_bytes"] > 500 * MIB
    assert "belong to no known part" in found["host_memory"]["what"]


async def test_two_looks_tell_which_part_has_grown(stack):
    """Provoked between them, in the server's own process, which may give other memory back."""
    pages = mmap.mmap(-1, 256 * MIB)
    looking = asyncio.create_task(doctor(stack, "--over", "1"))
    asked = stack.served.gateway.service.census
    seen = asyncio.Event()
    stack.served.gateway.service.census = lambda: seen.set() or asked()
    await seen.wait()
    for _ in range(256):
        pages.write(b"\1" * MIB)
    _, _, report = await looking
    pages.close()
    most = report["rises"][0]
    assert most["part"] == "other"
    assert most["bytes"] > 128 * MIB


async def test_tasks_that_nobody_ends_are_told(stack):
    tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(60)]
    _, found, _ = await doctor(stack)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert "tasks for 0 sockets and 0 turns" in found["files_and_tasks"]["what"]


async def test_an_engine_whose_server_is_gone_is_found(stack):
    command = [sys.executable, "-c", BUSY_LOOP, "-m", "engine.worker_process", "--parent=1"]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        _, found, _ = await doctor(stack)
    finally:
        process.kill()
        await process.wait()
    assert (
        f"process {process.pid} is an engine of process 1, which is gone"
        in (found["left_behind"]["what"])
    )
    assert found["left_behind"]["do"] == f"end it: kill {process.pid}"


@pytest.mark.parametrize(
    ("file", "means"),
    [
        ("data/sessiond/kv/kv-blocks.bin", "KV that an earlier server stored"),
        ("data/sessiond/kv/kv-blocks.bin.tmp", "no file of the disk tier"),
        ("cache/sessiond/models/.pull-abc/model.gguf", "a part of a model"),
    ],
)
async def test_files_that_earlier_servers_left_are_found(stack, tmp_path, file, means):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 4096)
    _, found, _ = await doctor(stack)
    assert means in found["left_behind"]["means"]
    assert "4.0 KiB" in found["left_behind"]["what"]
