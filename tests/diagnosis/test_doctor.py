"""Every explanation of `sessiond doctor`, with the state that it explains brought about."""

import asyncio
import contextlib
import ctypes
import json
import sys

import pytest
from typer.testing import CliRunner

from sessiond.__main__ import build_cli
from tests.diagnosis import own_server as own
from tests.harness.stack import real_stack

pytestmark = pytest.mark.second

BUSY_LOOP = "import time; time.sleep(600)"


@pytest.fixture
async def url(tmp_path, monkeypatch):
    """A database, on a machine where no server was."""
    from sessiond.store import migrate

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"sqlite+aiosqlite:///{tmp_path / 'doctor.db'}"
    await asyncio.to_thread(migrate.upgrade, url)
    return url


@pytest.fixture
async def stack(url):
    """A server of this process, whose parts can be reached."""
    async with real_stack(url) as stack:
        stack.pool = stack.rig.loop.memory.pool
        yield stack


@pytest.fixture
async def server(url):
    """A server whose memory and tasks are its own."""
    async with own.own_server(url) as server:
        yield server


async def doctor(http_url, *more):
    """What the command says: its exit code, its findings, and all of it."""
    command = ["doctor", "--url", http_url, "--json", *more]
    result = await asyncio.to_thread(CliRunner().invoke, build_cli(), command)
    report = json.loads(result.output)
    return result.exit_code, report["findings"], report


def told(findings, code, words):
    """The one finding of a code that says so; there are others beside it, also of its code."""
    [found] = [one for one in findings if one["code"] == code and words in one["what"]]
    return found


async def test_at_rest_there_is_nothing_to_explain(server):
    code, found, report = await doctor(server.http_url)
    assert code == 0
    # engines of other servers on this machine may just be leaving, and the fake has no pool apart
    beside = ("left_behind", "host_memory")
    assert [one for one in found if one["code"] not in beside] == []
    assert not any("no known part" in one["what"] for one in found)
    assert report["gateway"]["sockets"] == 0
    assert report["engine"]["rss_bytes"] > 0


async def test_blocks_that_nobody_has_are_a_fault(stack):
    blocks = stack.pool.try_take(3)
    code, findings, _ = await doctor(stack.served.http_url)
    stack.pool.free(blocks)
    assert code == 1
    found = told(findings, "kv_not_freed", "3 blocks are counted as used")
    assert found["fault"]
    assert "report" in found["do"]


async def test_sessions_that_nobody_ends_are_told(stack):
    async with contextlib.AsyncExitStack() as sockets:
        for number in range(8):
            socket = await sockets.enter_async_context(stack.served.connect())
            text = f"{number}" * 440
            await socket.send(json.dumps({"type": "response.create", "input": text}))
            while json.loads(await socket.recv())["type"] != "response.completed":
                pass
        code, found, report = await doctor(stack.served.http_url)
    assert code == 0
    assert report["sessions"]["idle"] == 8
    piled = told(found, "sessions_piling_up", "8 sessions in the engine (8 idle, 0 parked)")
    assert "8 attached or held" in piled["what"]
    assert "never (--session-ttl is 0)" in piled["what"]
    await stack.idle()
    _, found, _ = await doctor(stack.served.http_url)
    assert "sessions_piling_up" not in [one["code"] for one in found]


async def test_memory_that_the_heap_keeps_is_told_apart_from_what_is_used(server):
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("another C library")
    await server.do(own.keep_heap)
    code, found, report = await doctor(server.http_url)
    assert code == 0
    assert report["gateway"]["heap_free_bytes"] > 0.9 * own.HEAP_BYTES
    assert "no leak" in told(found, "allocator_cache", "the C heap of the gateway keeps")["means"]


async def test_memory_of_no_known_part_is_told(server):
    _, _, before = await doctor(server.http_url)
    await server.do(own.hold_pages)
    _, found, after = await doctor(server.http_url)
    risen = after["gateway"]["rss_bytes"] - before["gateway"]["rss_bytes"]
    assert risen > 0.9 * own.PAGES_BYTES
    told(found, "host_memory", "of the gateway's memory belong to no known part")


async def test_two_looks_tell_which_part_has_grown(server):
    await server.do(own.grow_between_looks)
    _, _, report = await doctor(server.http_url, "--over", "0.1")
    most = report["rises"][0]
    assert most["part"] == "other"
    assert most["bytes"] > 0.9 * own.PAGES_BYTES


async def test_tasks_that_nobody_ends_are_told(server):
    await server.do(own.leave_tasks)
    _, found, _ = await doctor(server.http_url)
    told(found, "files_and_tasks", "tasks for 0 sockets and 0 turns")


async def test_an_engine_whose_server_is_gone_is_found(stack):
    command = [sys.executable, "-c", BUSY_LOOP, "-m", "engine.worker_process", "--parent=1"]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        _, found, _ = await doctor(stack.served.http_url)
    finally:
        process.kill()
        await process.wait()
    gone = f"process {process.pid} is an engine of process 1, which has ended"
    assert told(found, "left_behind", gone)["do"] == f"end it: kill {process.pid}"


@pytest.mark.parametrize(
    ("file", "means"),
    [
        ("data/sessiond/kv/kv-blocks.bin", "KV stored by an earlier server"),
        ("data/sessiond/kv/kv-blocks.bin.tmp", "not a file of the disk tier"),
        ("cache/sessiond/models/.pull-abc/model.gguf", "a part of a model"),
    ],
)
async def test_files_that_earlier_servers_left_are_found(stack, tmp_path, file, means):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 4096)
    _, found, _ = await doctor(stack.served.http_url)
    whole = tmp_path / file.removesuffix("/model.gguf")
    assert means in told(found, "left_behind", f"{whole} holds 4.0 KiB")["means"]
