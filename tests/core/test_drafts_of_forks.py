"""Drafts of sessions that are forked, cut, closed or rolled back."""

import pytest

from tests.core.expected_turns import HEADER, answered, context_of, cost, reply_to, works_in_advance
from tests.harness.loop import Engine


def test_a_fork_has_no_drafts_and_its_parent_keeps_them(engine: Engine) -> None:
    ids = answered(engine)
    engine.fork("b", "a", len(ids))
    engine.check()
    assert cost(engine, "b", [*HEADER, 7]) == 4
    assert cost(engine, "a", [*HEADER, 7]) == 1
    assert engine.kept("t2") == engine.kept("t3")
    assert engine.kept("t2")[:1] == reply_to(engine, [*ids, *HEADER, 7])[:1]


def test_a_fork_that_outlives_its_parent_may_write_where_the_drafts_were(engine: Engine) -> None:
    ids = answered(engine)
    engine.fork("b", "a", len(ids) - 3)
    engine.close("a")
    turn = engine.turn("b", [5, 5, 5, 5, 5])
    assert engine.kept(turn)[:-2] == reply_to(engine, [*ids[:-3], 5, 5, 5, 5, 5])


def test_a_tail_that_a_fork_shares_is_not_written_in_advance(engine: Engine) -> None:
    engine.open("a")
    turn = engine.submit("a", [1] * 20, draft_ids=HEADER)
    engine.step_until(lambda: engine.ending(turn) is not None)
    engine.fork("b", "a", 22)
    assert not works_in_advance(engine)
    assert engine.model.copies == []


@pytest.mark.parametrize("length", [0, 5, 16, 23, 25, 26])
def test_a_session_that_was_cut_has_no_drafts(engine: Engine, length: int) -> None:
    ids = answered(engine)
    assert len(ids) == 26
    engine.truncate("a", length)
    engine.check()
    assert context_of(engine).drafted == 0
    turn = engine.turn("a", [*HEADER, 7])
    assert engine.kept(turn)[:-2] == reply_to(engine, [*ids[:length], *HEADER, 7])


@pytest.mark.parametrize("command", ["release", "open", "evict"])
def test_a_session_without_kv_has_no_drafts(make_engine, command: str) -> None:
    engine = make_engine(num_blocks=8)
    ids = answered(engine)
    match command:
        case "release":
            engine.release("a")
        case "open":
            engine.open("a", ids)
        case _:
            engine.open("b")
            engine.turn("b", [2] * 110)
            assert engine.stats().evictions_total == {"drop": 1}
    engine.check()
    assert context_of(engine).drafted == 0
    turn = engine.turn("a", [*HEADER, 7])
    assert engine.kept(turn)[:-2] == reply_to(engine, [*ids, *HEADER, 7])


def test_a_closed_session_is_not_worked_for(engine: Engine) -> None:
    engine.open("a")
    turn = engine.submit("a", [1] * 20, draft_ids=HEADER)
    engine.step_until(lambda: engine.ending(turn) is not None)
    engine.close("a")
    assert not works_in_advance(engine)
    assert engine.loop.rest_s is None


@pytest.mark.parametrize(("steps", "computed"), [(0, 1), (1, 1), (3, 4)])
def test_a_turn_that_took_the_drafts_and_is_rolled_back_never_was(
    engine: Engine, steps: int, computed: int
) -> None:
    ids = answered(engine)
    turn = engine.submit("a", [*HEADER, 7, 7])
    for _ in range(steps):
        engine.loop.step()
    engine.cancel(turn, keep=False)
    assert context_of(engine).ids == ids
    engine.run()
    engine.check()
    # The third step filled the tail's block, which is hashed since: it is not written any more.
    assert cost(engine, "a", [*HEADER, 7]) == computed
    assert engine.kept("t3")[:1] == reply_to(engine, [*ids, *HEADER, 7])[:1]
