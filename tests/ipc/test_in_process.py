import asyncio

import pytest

from engine.errors import ConfigError, EngineUnavailableError
from engine.ids import SessionId, TurnId
from engine.ipc.client import EngineClient
from engine.ipc.in_process import InProcessEngine, _ThreadTransport
from engine.ipc.messages import (
    CancelTurn,
    CloseContext,
    SubmitTurn,
    TurnDelta,
    TurnDone,
    TurnFailed,
    TurnIncomplete,
    TurnStarted,
)
from engine.ipc.queries import EngineStats, GetStats
from tests.ipc.loops import INFO, EchoLoop


def submit(name: str, words: int = 3) -> SubmitTurn:
    return SubmitTurn(
        turn=TurnId(name), session=SessionId("s"), ids=[1, 2], max_output_tokens=words
    )


class Bench:
    """An engine around an EchoLoop that the test can look into."""

    def __init__(self) -> None:
        self.loops: list[EchoLoop] = []
        self.engine = InProcessEngine(self._build)

    def _build(self, emit):
        self.loops.append(EchoLoop(emit))
        return self.loops[-1], INFO


@pytest.fixture
async def bench():
    bench = Bench()
    await bench.engine.start()
    yield bench
    await bench.engine.stop()


async def test_a_turn_streams_and_ends_once(bench):
    client: EngineClient = bench.engine
    events = [event async for event in client.submit(submit("a"))]
    assert isinstance(events[0], TurnStarted)
    assert "".join(e.text for e in events if isinstance(e, TurnDelta)) == "word word word "
    assert [type(e) for e in events].count(TurnDone) == 1
    assert isinstance(events[-1], TurnDone)


async def test_turns_run_side_by_side(bench):
    streams = [bench.engine.submit(submit(f"t{n}", words=20)) for n in range(8)]
    endings = await asyncio.gather(*(_ending(stream) for stream in streams))
    assert all(isinstance(ending, TurnDone) for ending in endings)


async def _ending(stream):
    return [event async for event in stream][-1]


async def test_cancel_ends_a_long_turn(bench):
    stream = bench.engine.submit(submit("a", words=10**9))
    assert isinstance(await anext(stream), TurnStarted)
    bench.engine.cancel(CancelTurn(turn=TurnId("a"), keep=False))
    assert isinstance(await _ending(stream), TurnIncomplete)


async def test_cancel_of_an_unknown_turn_sends_nothing(bench):
    bench.engine.cancel(CancelTurn(turn=TurnId("nobody"), keep=False))
    await bench.engine.ask(GetStats())
    assert bench.loops[0].commands == []


async def test_commands_arrive_in_order(bench):
    sent = [CloseContext(session=SessionId(str(n))) for n in range(50)]
    for command in sent:
        bench.engine.send(command)
    await bench.engine.ask(GetStats())
    assert bench.loops[0].commands == sent


async def test_what_was_said_before_the_door_closed_is_heard_before_that():
    transport = _ThreadTransport(lambda _: None, asyncio.get_running_loop())
    erase = CloseContext(session=SessionId("s"), erase=True)
    for item in (erase, None):
        transport.put(item)
    assert transport.receive(wait_s=None) == [erase]
    assert transport.receive(wait_s=None) is None


async def test_one_id_can_not_run_twice(bench):
    bench.engine.submit(submit("a", words=10**9))
    with pytest.raises(ValueError, match="already running"):
        bench.engine.submit(submit("a"))


async def test_an_idle_engine_takes_no_steps(bench):
    await bench.engine.ask(GetStats())
    before = bench.loops[0].steps
    for _ in range(200):
        await asyncio.sleep(0)
    answer = await bench.engine.ask(GetStats())
    assert isinstance(answer, EngineStats)
    assert bench.loops[0].steps <= before + 2  # one per question


async def test_one_wake_up_brings_all_events_of_a_step(bench, monkeypatch):
    loop, calls = asyncio.get_running_loop(), []
    wake = loop.call_soon_threadsafe

    def counting(callback, *args, **kwargs):
        calls.append(args)
        return wake(callback, *args, **kwargs)

    streams = [bench.engine.submit(submit(f"t{n}", words=1)) for n in range(8)]
    monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
    await asyncio.gather(*(_ending(stream) for stream in streams))
    assert len(calls) <= bench.loops[0].steps < 8 * 3


async def test_an_error_in_the_thread_ends_every_turn_and_is_kept(bench, caplog):
    stream = bench.engine.submit(submit("a", words=10**9))
    crash = bench.engine.submit(submit("crash"))
    ending = await _ending(stream)
    assert isinstance(ending, TurnFailed)
    assert ending.code == "internal_error"
    assert isinstance(await _ending(crash), TurnFailed)
    assert isinstance(bench.engine.failure, ZeroDivisionError)
    assert "the step went wrong" in caplog.text
    assert (bench.engine.epoch, bench.engine.available) == (2, False)
    with pytest.raises(EngineUnavailableError):
        bench.engine.submit(submit("b"))
    with pytest.raises(EngineUnavailableError):
        await bench.engine.ask(GetStats())


async def test_a_factory_that_fails_fails_start():
    def build(_emit):
        raise ConfigError("block_size", 0, "1 or more")

    engine = InProcessEngine(build)
    with pytest.raises(ConfigError, match="block_size"):
        await engine.start()
    with pytest.raises(EngineUnavailableError):
        engine.info  # noqa: B018 -- the look is the test


async def test_stop_ends_running_turns():
    bench = Bench()
    await bench.engine.start()
    stream = bench.engine.submit(submit("a", words=10**9))
    await bench.engine.stop()
    assert isinstance(await _ending(stream), TurnFailed)
    with pytest.raises(EngineUnavailableError):
        bench.engine.send(CloseContext(session=SessionId("s")))


async def test_a_blocked_asyncio_thread_holds_the_engine_back(bench, monkeypatch):
    """64 batches may wait; a loop that ran on would fill memory."""
    import time

    stream = bench.engine.submit(submit("a", words=10**9))
    room = bench.engine._transport._room  # noqa: SLF001 -- whether the loop is held back
    while room.acquire(blocking=False):
        room.release()
        time.sleep(0.001)  # noqa: ASYNC251 -- the asyncio thread is blocked on purpose
    assert bench.loops[0].steps <= 70
    bench.engine.cancel(CancelTurn(turn=TurnId("a"), keep=False))
    assert isinstance(await _ending(stream), TurnIncomplete)
