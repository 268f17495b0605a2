"""`TurnWaiting`: what a queued or preempted turn waits for, and its place."""

from engine.ipc.messages import TurnDegraded, TurnWaiting
from tests.core.test_priority import QUIET, submit
from tests.harness.loop import Engine


def waits(engine: Engine, turn: str) -> list[tuple[str, int]]:
    events = engine.events.get(turn, [])
    return [(event.cause, event.position) for event in events if isinstance(event, TurnWaiting)]


def degraded(engine: Engine, turn: str) -> list[TurnDegraded]:
    return [event for event in engine.events.get(turn, []) if isinstance(event, TurnDegraded)]


def look(engine: Engine, after_s: float = 1.0) -> None:
    engine.clock.advance(after_s)
    engine.step()


def test_a_turn_that_waits_for_a_slot_is_told_its_place_as_it_changes(make_engine) -> None:
    engine = make_engine(max_num_seqs=1, **QUIET)
    running = submit(engine, "a")
    engine.step(2)
    turns = [submit(engine, name) for name in "bcd"]
    look(engine)
    assert [waits(engine, turn) for turn in turns] == [[("slot", n)] for n in (1, 2, 3)]
    look(engine)
    assert [len(waits(engine, turn)) for turn in turns] == [1, 1, 1], "nothing has changed"
    engine.cancel(turns[0], keep=False)
    look(engine)
    assert waits(engine, turns[1]) == [("slot", 2), ("slot", 1)]
    assert waits(engine, turns[2]) == [("slot", 3), ("slot", 2)]
    assert not waits(engine, running)
    engine.run()


def test_a_turn_is_told_at_most_once_a_second(make_engine) -> None:
    engine = make_engine(max_num_seqs=1, **QUIET)
    submit(engine, "a", reply=400)
    engine.step(2)
    turns = [submit(engine, name) for name in "bcdefgh"]
    look(engine)
    for turn in turns[:-1]:
        engine.cancel(turn, keep=False)
        look(engine, 0.14)
    assert len(waits(engine, turns[-1])) == 1
    look(engine, 0.5)
    assert waits(engine, turns[-1]) == [("slot", 7), ("slot", 1)]
    engine.run()


def test_a_turn_that_waits_for_blocks_is_told_so(make_engine) -> None:
    engine = make_engine(num_blocks=10, max_num_seqs=4, **QUIET)
    submit(engine, "a", prompt=130, reply=20)
    engine.step(2)
    turn = submit(engine, "b", prompt=60)
    look(engine)
    assert waits(engine, turn) == [("blocks", 1)]
    engine.run()


def test_a_turn_that_a_higher_priority_stopped_is_told_so(make_engine) -> None:
    engine = make_engine(max_num_seqs=1, **QUIET)
    low = submit(engine, "a", priority=0)
    engine.step(3)
    high = submit(engine, "b", priority=2)
    look(engine)
    assert waits(engine, low) == [("slot", 1)]
    steps = [(event.step, event.reason) for event in degraded(engine, low)]
    assert steps == [("preempt", "priority")]
    assert not waits(engine, high)
    assert not degraded(engine, high)
    engine.run()


def test_background_turns_are_told_nothing(make_engine) -> None:
    engine = make_engine(max_num_seqs=1, **QUIET)
    submit(engine, "a")
    engine.open("b")
    turn = engine.submit("b", [2] * 20, background=True, max_output_tokens=4, stop_ids=[])
    look(engine)
    assert not waits(engine, turn)
    engine.run()
