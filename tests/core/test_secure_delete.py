"""What is to be kept nowhere is overwritten, and hit by nobody; what others hold stays."""

import pytest

from engine.ids import SessionId
from engine.ipc.messages import CloseContext, Edit
from tests.harness.loop import Engine

PROMPT = list(range(1, 61))


def erase(engine: Engine, session: str) -> None:
    engine.loop.handle(CloseContext(session=SessionId(session), erase=True))


def held(engine: Engine) -> int:
    """Slots that hold KV of anything."""
    return sum(slot != 0 for slot in engine.model.slots)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_nothing_of_an_erased_session_is_left(engine: Engine) -> None:
    engine.open("a")
    engine.turn("a", PROMPT)
    assert held(engine)
    erase(engine, "a")
    assert held(engine) == 0
    stats = engine.stats()
    assert (stats.cached_blocks, stats.free_blocks) == (0, stats.total_blocks)
    engine.open("b")
    assert engine.started(engine.turn("b", PROMPT)).reused_tokens == 0
    engine.check()


def test_a_session_that_is_only_closed_is_still_hit(engine: Engine) -> None:
    engine.open("a")
    engine.turn("a", PROMPT)
    engine.close("a")
    assert held(engine)
    engine.open("b")
    assert engine.started(engine.turn("b", PROMPT)).reused_tokens > 0


def test_blocks_that_it_had_given_back_are_erased_too(engine: Engine) -> None:
    engine.open("a")
    ids = [*PROMPT, *engine.kept(engine.turn("a", PROMPT))]
    engine.release("a")
    engine.close("a")
    assert engine.stats().cached_blocks
    engine.open("a", ids)  # the engine had forgotten the ids
    erase(engine, "a")
    assert engine.stats().cached_blocks == 0
    engine.open("b")
    assert engine.started(engine.turn("b", PROMPT)).reused_tokens == 0
    engine.check()


def test_what_a_fork_holds_stays_right(engine: Engine) -> None:
    engine.open("a")
    ids = [*PROMPT, *engine.kept(engine.turn("a", PROMPT))]
    engine.fork("b", "a", len(ids))
    before = engine.view("b")
    own = held(engine)
    erase(engine, "a")
    assert engine.view("b").kept_len == before.kept_len
    assert 0 < held(engine) <= own
    after = engine.kept(engine.turn("b", [7, 8, 9]))
    fresh = Engine()
    fresh.open("b", ids)
    assert after == fresh.kept(fresh.turn("b", [7, 8, 9]))
    erase(engine, "b")
    assert held(engine) == 0
    engine.check()


def test_a_running_turn_is_ended_and_erased(engine: Engine) -> None:
    engine.open("a")
    turn = engine.submit("a", PROMPT)
    engine.step(2)
    erase(engine, "a")
    assert engine.ending(turn) is not None
    engine.run()
    assert engine.stats().cached_blocks == 0
    engine.check()


def test_an_edited_session_is_erased_with_what_was_there_before_the_edit(engine: Engine) -> None:
    engine.open("a")
    ids = [*PROMPT, *engine.kept(engine.turn("a", PROMPT))]
    engine.edit("a", Edit(at=len(ids), dropped=((16, 40),)))
    engine.turn("a", [3] * 20)
    erase(engine, "a")
    assert engine.stats().cached_blocks == 0
    engine.open("b")
    assert engine.started(engine.turn("b", PROMPT)).reused_tokens == 0
    engine.check()


def test_another_users_equal_text_is_not_touched(engine: Engine) -> None:
    engine.open("a", salt=b"ann")
    engine.open("b", salt=b"bob")
    engine.turn("a", PROMPT)
    engine.turn("b", PROMPT)
    before = engine.view("b")
    erase(engine, "a")
    assert engine.view("b") == before
    engine.check()


def test_an_unknown_session_is_nothing(engine: Engine) -> None:
    erase(engine, "x")
    engine.check()
