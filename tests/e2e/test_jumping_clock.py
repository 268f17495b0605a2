"""A whole server whose wall clock jumps, by a library that is preloaded: nothing ends for that."""

import asyncio
import struct
import time
from pathlib import Path

import pytest

from benchmarks.load_client import LoadClient
from benchmarks.server_process import running_server
from engine.system.c_compiler import BuildError, find_compiler, run_compiler
from tests.e2e.support import assert_all_blocks_come_back, total

SOURCE = Path(__file__).with_name("jump.c")
HOUR_S, YEAR_S = 3600, 365 * 86_400
JUMPS = {"an hour": HOUR_S, "ten years": 10 * YEAR_S}
# what a wall clock could end: sessions, their KV, the server's lease
FLAGS = ["--session-ttl", "7200", "--ignore-eos", "--replica-heartbeat-s", "0.2"]


class Clock:
    """The server's wall clock: `jump` moves it from where it is."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.ahead_s = 0
        self.jump(0)

    def jump(self, seconds: int) -> None:
        self.ahead_s += seconds
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("q", self.ahead_s))

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture
def clock(tmp_path, monkeypatch):
    library = tmp_path / "jump.so"
    try:
        run_compiler(
            [find_compiler(), "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
        )
    except BuildError as error:
        pytest.skip(f"the library can't be built here: {error}")
    clock = Clock(tmp_path / "offset")
    monkeypatch.setenv("CLOCK_OFFSET_FILE", str(clock.file))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    return clock


@pytest.fixture
def server(clock, tmp_path):
    with running_server(tmp_path / "server", FLAGS) as running:
        yield running
        assert "Traceback" not in running.log, running.log


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "back"])
async def test_turns_sessions_and_kv_outlive_a_jump(server, clock, jump, sign):
    fields = {"temperature": 0, "max_output_tokens": 40}
    async with LoadClient(server.url, **fields) as client:
        first = await client.ask("What is the sea?")
        session = server.get("/v1/sessions")["data"][0]["id"]
        assert server.get(f"/v1/sessions/{session}")["created_at"] == pytest.approx(clock(), abs=60)

        running = await client.send("And the sky?")  # amid a turn
        clock.jump(sign * JUMPS[jump])
        second = await client.finish(running)
        assert second.end.outcome == "incomplete", second.end  # its whole length
        assert second.end.stats.output_tokens == 40
        assert second.end.stats.reused_tokens >= total(first) - 17

        await heartbeats(server)
        clock.jump(-2 * sign * JUMPS[jump])  # between turns, the other way
        await heartbeats(server)
        third = await client.ask("And the land?")
        assert third.end.outcome == "incomplete", third.end
        assert third.end.stats.recomputed_tokens == 0, "its KV was kept"
        assert [one["id"] for one in server.get("/v1/sessions")["data"]] == [session]
        assert "error" not in server.get("/health/ready")
        async with LoadClient(server.url, **fields) as other:
            await other.ask("What is the time?")
            (new,) = [one for one in server.get("/v1/sessions")["data"] if one["id"] != session]
            assert new["created_at"] == pytest.approx(clock(), abs=60), "the jump was seen"
    assert_all_blocks_come_back(server)


async def heartbeats(server):
    """Wait until the server has looked at the time again, some times over."""
    for _ in range(5):
        await asyncio.to_thread(server.get, "/health/ready")
        await asyncio.sleep(0.3)
