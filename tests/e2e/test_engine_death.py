"""The engine process is killed while it writes eight replies."""

import asyncio
import os
import re
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from benchmarks.load_client import LoadClient
from tests.e2e.support import assert_all_blocks_come_back
from tests.soak import SOAK

STREAMS = 8
ROUNDS = 20 if SOAK else 1
GREEDY = {"temperature": 0}
LONG = "Write a very long story about a lighthouse."
NEXT = "Say one short sentence."


def engine_pid(server):
    """The child process that holds the model."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    for pid in children.split():
        if b"engine.worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    raise AssertionError(f"no engine among the children {children!r}")


async def until_first_text(client, turn):
    while not turn.text:
        assert turn.end is None, turn.end
        turn.feed(await client.socket.recv(), at_s=0.0)


@pytest.mark.soak
@pytest.mark.timeout(1800 if SOAK else 900)
@pytest.mark.parametrize("round_number", range(ROUNDS))
async def test_sockets_outlive_the_engine_and_the_next_turn_of_each_session_is_right(
    server, recomputing_server, round_number
):
    restarts = engine_restarts(server)
    openings = [f"My number is {i + round_number}. Greet me." for i in range(STREAMS)]
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(LoadClient(server.url, **GREEDY)) for _ in openings
        ]
        for client, opening in zip(clients, openings, strict=True):
            await client.ask(opening, max_output_tokens=8)
        running = [await client.send(LONG, max_output_tokens=400) for client in clients]
        await asyncio.gather(*map(until_first_text, clients, running))
        os.kill(engine_pid(server), signal.SIGKILL)
        await asyncio.gather(*[c.finish(turn) for c, turn in zip(clients, running, strict=True)])
        assert [turn.end.code for turn in running] == ["engine_restarted"] * STREAMS
        after = await asyncio.gather(*[client.ask(NEXT, max_output_tokens=8) for client in clients])
    assert [turn.text for turn in after] == await undisturbed(recomputing_server, openings)
    assert_all_blocks_come_back(server)
    assert engine_restarts(server) == restarts + 1


def engine_restarts(server):
    (line,) = re.findall(
        r"^sessiond_engine_restarts_total (.+)$", server.get_text("/metrics"), re.MULTILINE
    )
    return float(line)


async def undisturbed(server, openings):
    """The same conversations without the turn that was lost."""

    async def one(opening):
        async with LoadClient(server.url, **GREEDY) as client:
            await client.ask(opening, max_output_tokens=8)
            return (await client.ask(NEXT, max_output_tokens=8)).text

    return await asyncio.gather(*map(one, openings))
