"""The server with the real model: it, or its engine alone, is killed or stopped amid replies."""

import asyncio
import contextlib
import os
import random
import signal

import pytest

from benchmarks.load_client import LoadClient
from benchmarks.server_process import running_server
from tests.e2e.support import assert_all_blocks_come_back
from tests.e2e.test_engine_death import engine_pid, until_first_text
from tests.e2e.test_instruction_sets import use_instruction_set
from tests.soak import SOAK, seed_of

pytestmark = pytest.mark.second

SEED = seed_of("CHAOS_SEED")
FAULTS = 20 if SOAK else 2
STREAMS = 4 if SOAK else 2
HANG_S = 10.0  # a step of the small model takes a tenth of that on a slow, busy machine
GREEDY = {"temperature": 0, "max_output_tokens": 8}
LONG = "Write a very long story about a lighthouse."


@pytest.mark.e2e
@pytest.mark.real_model
@pytest.mark.soak
@pytest.mark.timeout(3600 if SOAK else 900)
@pytest.mark.parametrize(("seed", "isa"), [(SEED, None), (SEED, "avx2"), (SEED, "portable")])
async def test_conversations_go_on_as_in_a_calm_run(tmp_path, monkeypatch, seed, isa):
    """On the best instruction set, and on those of lesser machines."""
    if isa is not None:
        use_instruction_set(isa, monkeypatch)
    chance = random.Random(seed)
    # no long reply ends before its fault, wherever the model would stop
    flags = ["--step-timeout-s", str(HANG_S), "--http-hold-s", "1", "--ignore-eos"]
    faults = [(signal.SIGKILL, signal.SIGSTOP)[number % 2] for number in range(FAULTS)]
    chance.shuffle(faults)
    with running_server(tmp_path / "server", flags) as server:
        assert isa is None or f"attention native-{isa}" in server.log
        questions = [
            [f"Tell me about the number {chance.randrange(1000)}." for _ in range(FAULTS + 1)]
            for _ in range(STREAMS)
        ]
        clients = [LoadClient(server.url, **GREEDY) for _ in range(STREAMS)]
        for client in clients:
            await client.__aenter__()
        replies = [[] for _ in clients]
        for number in range(FAULTS + 1):
            for said, client, asked in zip(replies, clients, questions, strict=True):
                said.append((await client.ask(asked[number])).text)
            if number < FAULTS:
                await meet(server, clients, faults[number])
        for client in clients:
            await client.__aexit__(None, None, None)
        calm = await asyncio.gather(*(undisturbed(server, asked) for asked in questions))
        assert replies == calm
        assert_all_blocks_come_back(server)
        metrics = server.get_text("/metrics")
        assert f"sessiond_engine_restarts_total {FAULTS:.1f}" in metrics
        assert f"sessiond_engine_hangs_total {faults.count(signal.SIGSTOP):.1f}" in metrics
        assert server.log.count("hangs: it has completed no step") == faults.count(signal.SIGSTOP)


async def meet(server, clients, fault):
    """While all write; each of the turns is told of it, and no socket is lost."""
    running = [await client.send(LONG, max_output_tokens=400) for client in clients]
    await asyncio.gather(*map(until_first_text, clients, running))
    os.kill(engine_pid(server), fault)
    await asyncio.gather(*[c.finish(turn) for c, turn in zip(clients, running, strict=True)])
    assert [turn.end.code for turn in running] == ["engine_restarted"] * len(clients)


@pytest.mark.e2e
@pytest.mark.real_model
@pytest.mark.soak
@pytest.mark.timeout(3600 if SOAK else 900)
@pytest.mark.parametrize("seed", [SEED])
async def test_t44_conversations_go_on_behind_a_server_that_is_stopped_or_killed(tmp_path, seed):
    chance = random.Random(seed)
    stops = [(True, False)[number % 2] for number in range(FAULTS)]
    chance.shuffle(stops)
    questions = [
        [f"Tell me about the number {chance.randrange(1000)}." for _ in range(FAULTS + 1)]
        for _ in range(STREAMS)
    ]
    tips, replies = [None] * STREAMS, [[] for _ in range(STREAMS)]
    with running_server(tmp_path / "server", ["--drain-timeout-s", "1", "--ignore-eos"]) as server:
        for number in range(FAULTS + 1):
            async with contextlib.AsyncExitStack() as sockets:
                clients = [LoadClient(server.url, **GREEDY) for _ in range(STREAMS)]
                for client, tip in zip(clients, tips, strict=True):
                    await sockets.enter_async_context(client)
                    client.tip = tip
                for said, client, asked in zip(replies, clients, questions, strict=True):
                    said.append((await client.ask(asked[number])).text)
                tips = [client.tip for client in clients]
                if number < FAULTS:
                    await end(server, clients, drained=stops[number])
                    await asyncio.to_thread(server.start)
        calm = await asyncio.gather(*(undisturbed(server, asked) for asked in questions))
        assert replies == calm
        assert_all_blocks_come_back(server)
        assert "Traceback" not in server.log


async def end(server, clients, *, drained):
    """While all write: who is told to stop cuts the replies that are too long, and says 1012."""
    running = [await client.send(LONG, max_output_tokens=7000) for client in clients]
    await asyncio.gather(*map(until_first_text, clients, running))
    ended = asyncio.create_task(asyncio.to_thread(server.stop if drained else server.kill))
    await asyncio.gather(*[c.finish(turn) for c, turn in zip(clients, running, strict=True)])
    assert await ended == (0 if drained else None)
    told = [turn.end.outcome for turn in running]
    assert told == ["incomplete" if drained else "cut"] * len(clients)
    for client in clients:
        await client.socket.wait_closed()
    codes = [client.socket.close_code for client in clients]
    assert codes == [1012 if drained else 1006] * len(clients)


async def undisturbed(server, questions):
    async with LoadClient(server.url, **GREEDY) as client:
        return [(await client.ask(question)).text for question in questions]
