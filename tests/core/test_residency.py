"""Limits on what a session and a user hold: refused, made room for, or waited for."""

import pytest

from engine.core.pressure import BlockDemand, within_limit
from engine.ipc.messages import TurnFailed
from tests.harness.loop import Engine

QUIET = {"idle_prefill": False, "num_speculative_tokens": 0}


def test_users_wait_for_themselves_only() -> None:
    waiting = [
        BlockDemand("a1", b"a", 6, 10),
        BlockDemand("b1", b"b", 6, 10),
        BlockDemand("a2", b"a", 1, 10),
    ]
    running = [BlockDemand("a0", b"a", 5, 10)]
    assert within_limit(waiting, running) == ["b1"], "a2 must not pass a1 for ever"
    assert within_limit(waiting, []) == ["a1", "b1", "a2"]
    assert within_limit([BlockDemand("a1", b"a", 6, 10), BlockDemand("a2", b"a", 6, 10)], []) == [
        "a1"
    ]
    assert within_limit([BlockDemand("a1", b"a", 6, None), BlockDemand("b", b"b", 6, 5)], []) == [
        "a1"
    ]


@pytest.mark.parametrize("limit", ["max_resident_blocks", "max_user_resident_blocks"])
def test_a_turn_that_can_never_fit_is_refused_with_the_name_of_the_limit(
    make_engine, limit: str
) -> None:
    engine = make_engine(**{limit: 4}, **QUIET)
    engine.open("a")
    ending = engine.ending(engine.turn("a", [1] * 60, max_output_tokens=8))
    assert isinstance(ending, TurnFailed)
    assert ending.code == "request_too_large"
    assert f"{limit} is 4" in ending.message
    assert engine.kept(engine.turn("a", [1] * 40, max_output_tokens=8))


def test_idle_sessions_of_the_same_user_give_way_first(make_engine) -> None:
    engine = make_engine(num_blocks=64, max_user_resident_blocks=8, **QUIET)
    for session, salt in (("other", b"2"), ("old", b"1"), ("new", b"1")):
        engine.open(session, salt=salt)
        engine.turn(session, [len(session)] * 40, max_output_tokens=1)
    engine.open("third", salt=b"1")
    engine.turn("third", [7] * 40, max_output_tokens=1)
    blocks = [engine.view(name).blocks for name in ("other", "old", "new", "third")]
    assert blocks == [3, 0, 3, 3], "the other user's is older still"


def test_a_turn_that_may_fit_later_waits_and_others_pass(make_engine) -> None:
    engine = make_engine(num_blocks=64, max_user_resident_blocks=6, **QUIET)
    for session, salt in (("a1", b"a"), ("a2", b"a"), ("b", b"b")):
        engine.open(session, salt=salt)
    first = engine.submit("a1", [1] * 20, max_output_tokens=40, stop_ids=[])
    second = engine.submit("a2", [2] * 20, max_output_tokens=40, stop_ids=[])
    other = engine.submit("b", [3] * 20, max_output_tokens=2, stop_ids=[])
    engine.step_until(lambda: engine.ending(other) is not None)
    assert engine.started(first)
    assert not engine.started(second)
    held(engine, "a1", "a2", most=6)
    engine.run()
    assert engine.kept(second)
    held(engine, "a1", "a2", most=6)


def held(engine: Engine, *sessions: str, most: int) -> None:
    assert sum(engine.view(session).blocks for session in sessions) <= most


def test_a_limit_holds_at_every_step(make_engine) -> None:
    engine = make_engine(num_blocks=64, max_user_resident_blocks=9, **QUIET)
    turns = []
    for number in range(6):
        engine.open(f"s{number}", salt=b"a")
        turns.append(engine.submit(f"s{number}", [number] * 20, max_output_tokens=20, stop_ids=[]))
    while engine.loop.step():
        held(engine, *[f"s{number}" for number in range(6)], most=9)
    assert all(engine.kept(turn) for turn in turns)
