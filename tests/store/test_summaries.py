"""Which stored summary a context may use, and up to which turn it was written."""

from dataclasses import replace

import pytest

from sessiond.domain import TurnUsage
from sessiond.store.context_layout import SummaryRef
from sessiond.store.errors import StoreError
from sessiond.store.records import NewSummary, StoredSummary
from tests.store.rows import kept, prompt, session, turn

ADDED = 3  # tokens of each turn: two of input, one of reply


@pytest.fixture
async def chain(store):
    """resp_1 to resp_3, then fork_3 on resp_2 in a session of its own."""
    for number in (1, 2, 3):
        await grow(store, f"resp_{number}", f"resp_{number - 1}" if number > 1 else None, number)
    fork = replace(session("conv_2", tip_id="resp_2", tokens=8))
    await store.begin_turn(
        turn("fork_3", "resp_2", session_id="conv_2", start=8), session=fork, prompt=None
    )
    row = kept("fork_3", "resp_2", session_id="conv_2", tokens=8 + ADDED)
    await store.commit_turn(row)
    return store


async def grow(store, turn_id, parent_id, number):
    first = parent_id is None
    start = 2 + ADDED * (number - 1)
    await store.begin_turn(
        turn(turn_id, parent_id, start=start),
        session=session() if first else None,
        prompt=prompt() if first else None,
    )
    await store.commit_turn(kept(turn_id, parent_id, tokens=start + ADDED))


def summary(name, turn_id, *, tokens=4, created_at=1.0, user_id="ann"):
    return NewSummary(
        id=name,
        user_id=user_id,
        session_id="conv_1",
        turn_id=turn_id,
        token_ids=tuple(range(tokens)),
        text="short",
        usage=TurnUsage(),
        created_at=created_at,
    )


def stored(name, read_tokens, tokens=4):
    return StoredSummary(ref=SummaryRef(id=name, tokens=tokens), read_tokens=read_tokens)


async def test_there_may_be_none(chain):
    assert await chain.newest_summary("ann", "resp_3") is None
    assert await chain.newest_summary("ann", None) is None


async def test_the_one_that_read_most_is_found(chain):
    await chain.add_summary(summary("two", "resp_2", created_at=1.0))
    await chain.add_summary(summary("one", "resp_1", created_at=9.0))
    assert await chain.newest_summary("ann", "resp_3") == stored("two", 2 * ADDED)
    assert await chain.newest_summary("ann", "resp_1") == stored("one", ADDED)


async def test_of_two_that_read_the_same_the_later_one(chain):
    await chain.add_summary(summary("late", "resp_2", created_at=2.0, tokens=5))
    await chain.add_summary(summary("early", "resp_2", created_at=1.0))
    assert await chain.newest_summary("ann", "resp_3") == stored("late", 2 * ADDED, 5)


async def test_a_fork_finds_those_of_turns_that_it_has_and_no_others(chain):
    await chain.add_summary(summary("three", "resp_3"))
    assert await chain.newest_summary("ann", "fork_3") is None
    await chain.add_summary(summary("two", "resp_2"))
    assert await chain.newest_summary("ann", "fork_3") == stored("two", 2 * ADDED)


async def test_another_user_finds_nothing(chain):
    await chain.add_summary(summary("two", "resp_2"))
    assert await chain.newest_summary("bob", "resp_3") is None


async def test_the_turn_at_which_so_much_of_the_history_ends(chain):
    for number in (1, 2, 3):
        found = await chain.turn_ending_at("ann", "resp_3", ADDED * number)
        assert found == f"resp_{number}"
    assert await chain.turn_ending_at("ann", "fork_3", 3 * ADDED) == "fork_3"
    assert await chain.turn_ending_at("ann", "resp_3", ADDED + 1) is None
    assert await chain.turn_ending_at("bob", "resp_3", ADDED) is None


async def test_a_summary_of_no_turn_is_refused(chain):
    with pytest.raises(StoreError):
        await chain.add_summary(summary("bad", "resp_9"))
