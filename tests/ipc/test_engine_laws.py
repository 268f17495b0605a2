"""What the gateway may rely on, whichever way the engine runs: the real loop, the fake model."""

import asyncio
import os
import signal
import threading
from functools import partial

import pytest

from engine.config import EngineConfig
from engine.ids import SessionId, TurnId
from engine.ipc.in_process import InProcessEngine
from engine.ipc.messages import (
    CancelTurn,
    CloseContext,
    Sampling,
    SetContext,
    SubmitTurn,
    TurnDelta,
    TurnDone,
    TurnFailed,
    TurnIncomplete,
    TurnStarted,
    TurnWaiting,
)
from engine.ipc.queries import AuditReport, ContextView, EngineStats, GetAudit, GetContext, GetStats
from engine.ipc.worker_client import Backoff, WorkerEngine
from tests.fakes.fake_model import Draw, expected_reply
from tests.ipc.loops import FATAL_TOKEN, fake_model

CONFIG = EngineConfig(model="fake", max_num_batched_tokens=64)
PROMPT = [10, 20, 30, 40, 50]
ENDINGS = (TurnDone, TurnIncomplete, TurnFailed)


def in_process() -> InProcessEngine:
    return InProcessEngine(partial(fake_model, CONFIG))


def worker() -> WorkerEngine:
    return WorkerEngine(
        CONFIG,
        backoff=Backoff(first_s=0.01, most_s=0.05),
        loop_factory="tests.ipc.loops:fake_model",
    )


@pytest.fixture(params=[in_process, worker])
async def engine(request):
    engine = request.param()
    await engine.start()
    yield engine
    if engine.available:
        report = await engine.ask(GetAudit())
        assert isinstance(report, AuditReport)
        assert report.violations == []
    await engine.stop()


def open_session(engine, name: str, ids: list[int]) -> None:
    engine.send(SetContext(session=SessionId(name), salt=b"", ids=ids))


def turn(name: str, session: str, *, ids: list[int], words: int = 12) -> SubmitTurn:
    return SubmitTurn(
        turn=TurnId(name),
        session=SessionId(session),
        ids=ids,
        sampling=Sampling(temperature=0),
        max_output_tokens=words,
    )


def right_text(ids: list[int], words: int = 12) -> str:
    return bytes(expected_reply(ids, draw=Draw(), max_output_tokens=words)).decode()


async def read(stream) -> tuple[str, list]:
    events = [event async for event in stream]
    events = [event for event in events if not isinstance(event, TurnWaiting)]
    assert isinstance(events[0], TurnStarted | TurnFailed)
    assert [isinstance(event, ENDINGS) for event in events] == [False] * (len(events) - 1) + [True]
    return "".join(e.text for e in events if isinstance(e, TurnDelta)), events


async def test_a_turn_replies_as_the_model_would_and_keeps_its_kv(engine):
    open_session(engine, "s", [])
    text, events = await read(engine.submit(turn("t", "s", ids=PROMPT)))
    assert text == events[-1].text == right_text(PROMPT)
    view = await engine.ask(GetContext(session=SessionId("s")))
    assert isinstance(view, ContextView)
    assert (view.known, view.running, view.tokens) == (True, False, len(PROMPT) + 12)
    again, events = await read(engine.submit(turn("t2", "s", ids=[7])))
    assert again == right_text([*PROMPT, *text.encode(), 7])
    assert events[0].reused_tokens >= len(PROMPT) + 12 - 1


async def test_sixteen_turns_at_once_each_get_their_own_reply(engine):
    streams = []
    for n in range(16):
        open_session(engine, f"s{n}", [n, n, n])
        streams.append(engine.submit(turn(f"t{n}", f"s{n}", ids=PROMPT)))
    replies = await asyncio.gather(*(read(stream) for stream in streams))
    assert [text for text, _ in replies] == [right_text([n, n, n, *PROMPT]) for n in range(16)]


async def test_a_cancelled_turn_ends_once_and_leaves_the_session_as_it_was(engine):
    open_session(engine, "s", [1, 2, 3])
    stream = engine.submit(turn("t", "s", ids=PROMPT, words=3900))
    assert isinstance(await anext(stream), TurnStarted)
    engine.cancel(CancelTurn(turn=TurnId("t"), keep=False))
    engine.cancel(CancelTurn(turn=TurnId("t"), keep=False))
    ending = [event async for event in stream][-1]
    assert isinstance(ending, TurnIncomplete)
    assert ending.rolled_back
    text, _ = await read(engine.submit(turn("t2", "s", ids=PROMPT)))
    assert text == right_text([1, 2, 3, *PROMPT])


async def test_closing_every_session_gives_back_every_block(engine):
    for n in range(4):
        open_session(engine, f"s{n}", [])
        await read(engine.submit(turn(f"t{n}", f"s{n}", ids=PROMPT)))
        engine.send(CloseContext(session=SessionId(f"s{n}")))
    stats = await engine.ask(GetStats())
    assert isinstance(stats, EngineStats)
    assert (stats.contexts, stats.active_blocks) == (0, 0)
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks


async def test_a_session_that_the_engine_does_not_know_is_told(engine):
    _, events = await read(engine.submit(turn("t", "nobody", ids=PROMPT)))
    assert isinstance(events[-1], TurnFailed)
    assert events[-1].code == "engine_restarted"


async def test_after_kill_9_the_same_session_set_again_gets_the_right_reply():
    engine = worker()
    await engine.start()
    streams = []
    for n in range(8):
        open_session(engine, f"s{n}", [n, n])
        streams.append(engine.submit(turn(f"t{n}", f"s{n}", ids=PROMPT, words=3900)))
    for stream in streams:
        assert isinstance(await anext(stream), TurnStarted)
    os.kill(engine.pid, signal.SIGKILL)
    endings = [[event async for event in stream][-1] for stream in streams]
    assert {(type(e), e.code) for e in endings} == {(TurnFailed, "engine_restarted")}
    assert engine.epoch == 2
    async with asyncio.timeout(60):
        await engine.ready()
    for n in range(8):
        open_session(engine, f"s{n}", [n, n])
        text, _ = await read(engine.submit(turn(f"again{n}", f"s{n}", ids=PROMPT)))
        assert text == right_text([n, n, *PROMPT])
    await engine.stop()


async def test_after_a_lost_device_a_new_process_serves(caplog):
    engine = worker()
    await engine.start()
    for name in ("a", "b"):
        open_session(engine, name, [1, 2])
    # at once: else the neighbour may have ended before the other is heard
    turns = [turn("t1", "a", ids=PROMPT, words=3900), turn("t2", "b", ids=[FATAL_TOKEN])]
    streams = [engine.submit(one) for one in turns]
    endings = [[event async for event in stream][-1] for stream in streams]
    assert {(type(e), e.code) for e in endings} == {(TurnFailed, "engine_restarted")}
    async with asyncio.timeout(60):
        await engine.ready()
    assert engine.epoch == 2
    assert "an illegal memory access was encountered" in caplog.text
    open_session(engine, "a", [1, 2])
    text, _ = await read(engine.submit(turn("again", "a", ids=PROMPT)))
    assert text == right_text([1, 2, *PROMPT])
    await engine.stop()


async def test_a_turn_that_left_the_queue_is_told_before_its_step_ends():
    gate = threading.Event()

    def gated(emit):
        loop, info = fake_model(CONFIG, emit)
        loop._runner.gate = gate  # noqa: SLF001 -- the loop builds it
        return loop, info

    engine = InProcessEngine(gated)
    await engine.start()
    open_session(engine, "s", [])
    events = aiter(engine.submit(turn("t", "s", ids=PROMPT)))
    try:
        async with asyncio.timeout(60):
            assert isinstance(await anext(events), TurnStarted)
    finally:
        gate.set()
        await engine.stop()
