"""Turns in the background: nobody waits for them, and they hold nothing that others want."""

import pytest

from engine.ipc.messages import TurnFailed
from tests.fakes.fake_model import expected_reply
from tests.harness.loop import Engine


def right(engine: Engine, turn: str, ids: list[int], limit: int) -> bool:
    reply = expected_reply(ids, draw=engine.draw, max_output_tokens=limit, stop_ids=())
    return engine.kept(turn)[:-2] == reply


def background(engine: Engine, session: str, ids: list[int], limit: int = 40) -> str:
    return engine.submit(session, ids, background=True, max_output_tokens=limit, stop_ids=[])


def has_ended(engine: Engine, turn: str) -> bool:
    return engine.ending(turn) is not None


def said(engine: Engine, session: str) -> list[int]:
    """Open a session with one turn in it; its ids."""
    engine.open(session)
    ids = [ord(session)] * 60
    return ids + engine.kept(engine.turn(session, ids, max_output_tokens=1))


@pytest.fixture
def engine(make_engine) -> Engine:
    engine = make_engine()
    before = said(engine, "i")
    engine.fork("back", "i", len(before))
    engine.open("other")
    return engine


@pytest.fixture
def before(engine) -> list[int]:
    """What the context of the turn in the background begins with."""
    return [ord("i")] * 60 + engine.kept("t1")


def test_it_runs_as_any_turn_while_nobody_else_does(engine, before) -> None:
    turn = background(engine, "back", [2, 3])
    engine.run()
    assert right(engine, turn, [*before, 2, 3], 40)
    assert engine.started(turn).reused_tokens >= len(before) - 16
    assert engine.stats().preemptions_total == 0


def test_it_gives_way_within_a_step_and_goes_on_where_it_was(engine, before) -> None:
    turn = background(engine, "back", [2, 3])
    engine.step(5)
    text = engine.text(turn)
    assert text
    other = engine.submit("other", [5] * 40, max_output_tokens=10, stop_ids=[])
    computed = engine.model.computed_tokens
    while not has_ended(engine, other):
        engine.step()
        if not has_ended(engine, other):
            assert engine.view("back").blocks == 0
            assert engine.text(turn) == text
    assert engine.model.computed_tokens - computed == 40 + 9, "the other's tokens and no more"
    again = engine.model.computed_tokens
    engine.run()
    assert right(engine, turn, [*before, 2, 3], 40)
    left = 40 - len(text)
    assert engine.model.computed_tokens - again <= left + 16 + 4, "full blocks were found again"


def test_it_waits_for_all_that_come_and_takes_no_place_from_them(make_engine) -> None:
    engine = make_engine(max_num_seqs=1, max_num_waiting=0)
    for session in "abc":
        engine.open(session)
    turn = background(engine, "b", [2] * 20, limit=4)
    first = engine.submit("a", [1] * 20)
    refused = engine.submit("c", [3] * 20)
    assert isinstance(engine.events[refused][-1], TurnFailed), "the one place is taken"
    engine.step()
    assert turn not in engine.events
    while not has_ended(engine, first):
        engine.step()
    later = engine.submit("c", [3] * 20)
    engine.run()
    assert right(engine, turn, [2] * 20, 4)
    order = list(engine.events)
    assert order.index(later) < order.index(turn)


def test_with_raised_priority_it_is_like_any_other(engine, before) -> None:
    turn = background(engine, "back", [2, 3], limit=6)
    other = engine.submit("other", [5] * 40, max_output_tokens=30, stop_ids=[])
    engine.step(3)
    assert turn not in engine.events
    engine.raise_priority("back")
    engine.raise_priority("nobody")
    while not has_ended(engine, turn):
        engine.step()
    assert not has_ended(engine, other)
    assert right(engine, turn, [*before, 2, 3], 6)
    engine.run()
    assert right(engine, other, [5] * 40, 30)


def test_no_idle_session_loses_blocks_to_it(make_engine) -> None:
    engine = make_engine(num_blocks=10)
    before = said(engine, "a")
    said(engine, "b")
    engine.fork("back", "a", len(before))
    turn = background(engine, "back", [2, 3])
    engine.run()
    ending = engine.events[turn][-1]
    assert isinstance(ending, TurnFailed)
    assert ending.code == "queue_full"
    assert not engine.stats().evictions_total
    fits = background(engine, "back", [2, 3], limit=8)
    engine.run()
    assert right(engine, fits, [*before, 2, 3], 8)
    assert not engine.stats().evictions_total


def test_cancelled_while_it_gives_way_it_leaves_nothing(engine) -> None:
    held = engine.stats().active_blocks
    turn = background(engine, "back", [2, 3])
    engine.step(5)
    other = engine.submit("other", [5] * 40, max_output_tokens=10)
    engine.step()
    engine.cancel(turn, keep=False)
    engine.close("back")
    engine.run()
    assert has_ended(engine, other)
    engine.close("other")
    assert engine.stats().active_blocks == held
