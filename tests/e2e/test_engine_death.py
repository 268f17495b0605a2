"""The engine process is killed while it writes eight replies."""

import asyncio
import os
import signal
from pathlib import Path

from benchmarks.load_client import LoadClient
from tests.e2e.support import assert_all_blocks_come_back

STREAMS = 8
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


async def opened(server):
    clients = [LoadClient(server.url, **GREEDY) for _ in range(STREAMS)]
    for client in clients:
        await client.__aenter__()
    return clients


async def test_sockets_outlive_the_engine_and_the_next_turn_of_each_session_is_right(
    server, recomputing_server
):
    clients = await opened(server)
    openings = [f"My number is {i}. Greet me." for i in range(STREAMS)]
    for client, opening in zip(clients, openings, strict=True):
        await client.ask(opening, max_output_tokens=8)
    running = [await client.send(LONG, max_output_tokens=400) for client in clients]
    await asyncio.gather(*map(until_first_text, clients, running))
    os.kill(engine_pid(server), signal.SIGKILL)
    await asyncio.gather(*[c.finish(turn) for c, turn in zip(clients, running, strict=True)])
    assert [turn.end.code for turn in running] == ["engine_restarted"] * STREAMS
    after = await asyncio.gather(*[client.ask(NEXT, max_output_tokens=8) for client in clients])
    assert [turn.text for turn in after] == await undisturbed(recomputing_server, openings)
    for client in clients:
        await client.__aexit__(None, None, None)
    assert_all_blocks_come_back(server)
    assert "sessiond_engine_restarts_total 1.0" in server.get_text("/metrics")


async def undisturbed(server, openings):
    """The same conversations without the turn that was lost."""

    async def one(opening):
        async with LoadClient(server.url, **GREEDY) as client:
            await client.ask(opening, max_output_tokens=8)
            return (await client.ask(NEXT, max_output_tokens=8)).text

    return await asyncio.gather(*map(one, openings))
