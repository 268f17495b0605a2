"""What a new session is built on is there when it is stored, whoever deletes what meanwhile."""

import asyncio

import pytest

from sessiond.store.errors import BaseGoneError
from sessiond.store.store import Store
from tests.databases import PATIENCE_S
from tests.store.rows import kept, prompt, session, turn

ROUNDS = 12


async def told(store):
    """A session of one turn."""
    await store.begin_turn(turn(), session=session(), prompt=prompt())
    await store.commit_turn(kept())


def fork(number=2):
    """A fork's row and its first turn."""
    row = session(f"conv_{number}", tip_id="resp_1", tokens=5)
    return row, turn(f"resp_{number}", "resp_1", session_id=row.id, start=5)


async def begin(store, number=2, new_system_prefix=None):
    row, first = fork(number)
    return await store.begin_turn(first, session=row, prompt=new_system_prefix)


@pytest.mark.parametrize("new_system_prefix", [None, prompt("sys_2")])
async def test_a_turn_on_a_response_that_was_deleted_is_not_stored(store, new_system_prefix):
    await told(store)
    await store.close_session("ann", "conv_1", 9.0)
    with pytest.raises(BaseGoneError):
        await begin(store, new_system_prefix=new_system_prefix)
    assert await store.find_session("ann", "conv_2") is None
    assert await store.find_turn("ann", "resp_2") is None
    assert store.failure is None


async def test_a_fork_of_what_was_deleted_is_not_stored(store):
    await told(store)
    await store.close_session("ann", "conv_1", 9.0)
    for row in (fork()[0], session("conv_2")):  # at a response; at the instructions alone
        with pytest.raises(BaseGoneError):
            await store.create_session(row, None)
        assert await store.find_session("ann", "conv_2") is None


async def test_another_users_rows_are_none_to_build_on(store):
    await told(store)
    for tip in ("resp_1", None):
        row = session("conv_b", user_id="bob", tip_id=tip, tokens=5 if tip else 2)
        with pytest.raises(BaseGoneError):
            await store.create_session(row, None)


async def test_what_another_fork_keeps_can_still_be_built_on(store):
    await told(store)
    await store.create_session(session("conv_3", tip_id="resp_1", tokens=5), None)
    await store.close_session("ann", "conv_1", 9.0)
    await begin(store)
    assert await store.context_ids("ann", "sys_1", "resp_2") == [1, 2, 3, 4, 5, 3, 4]


@pytest.mark.parametrize("runs", [True, False])
async def test_a_fork_and_a_deletion_at_once_are_one_after_the_other(url, runs):
    """From two servers: either the fork has all that it is built on, or it is not there."""
    stores = [Store(url, timeout_s=PATIENCE_S) for _ in range(2)]
    try:
        for number in range(ROUNDS):
            await told(stores[0])
            forking = begin(stores[1]) if runs else stores[1].create_session(fork()[0], None)
            works = [forking, stores[0].close_session("ann", "conv_1", 9.0)]
            order = works if number % 2 else works[::-1]
            answers = await asyncio.gather(*order, return_exceptions=True)
            assert True in answers  # it was closed
            gone = [one for one in answers if isinstance(one, Exception)]
            assert all(isinstance(one, BaseGoneError) for one in gone), gone
            stored = await stores[0].find_session("ann", "conv_2")
            assert (stored is None) == bool(gone)
            if stored is not None:
                assert await stores[0].context_ids("ann", "sys_1", "resp_1") == [1, 2, 3, 4, 5]
            await clear(stores[0])
    finally:
        for one in stores:
            await one.close()


async def clear(store):
    """End everything of the user, and let its rows go."""
    for session_id in ("conv_1", "conv_2"):
        await store.close_session("ann", session_id, 9.0)
    await store.close_session("ann", "conv_1", 9.0 + 48 * 3600)
    assert await store.find_session("ann", "conv_1") is None
