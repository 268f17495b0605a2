import asyncio

from engine.ids import TurnId
from engine.ipc.messages import TurnCounts, TurnDelta, TurnDone, TurnStarted
from engine.ipc.turn_stream import TurnStream

TURN = TurnId("t1")
STARTED = TurnStarted(turn=TURN, reused_tokens=0, recomputed_tokens=0, new_tokens=1, queue_ms=0.0)
DONE = TurnDone(turn=TURN, text="", kept_ids=[], counts=TurnCounts())


def delta(text: str) -> TurnDelta:
    return TurnDelta(turn=TURN, text=text, tokens=1)


async def test_a_slow_reader_finds_waiting_deltas_merged_into_one():
    stream = TurnStream(TURN)
    for event in (STARTED, delta("Hel"), delta("lo"), delta("!"), DONE):
        stream.push(event)
    assert [event async for event in stream] == [
        STARTED,
        TurnDelta(turn=TURN, text="Hello!", tokens=3),
        DONE,
    ]


async def test_a_quick_reader_gets_every_delta_by_itself():
    stream = TurnStream(TURN)
    for event in (STARTED, delta("a"), delta("b"), DONE):
        read = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)  # the reader waits first
        stream.push(event)
        assert await read == event


async def test_iteration_stops_after_the_ending_and_stays_stopped():
    stream = TurnStream(TURN)
    stream.push(DONE)
    assert [event async for event in stream] == [DONE]
    assert [event async for event in stream] == []


async def test_a_cancelled_read_loses_nothing():
    stream = TurnStream(TURN)
    reader = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    stream.push(delta("kept"))
    assert await anext(stream) == delta("kept")
