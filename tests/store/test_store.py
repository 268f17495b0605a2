"""What the store promises about rows, whatever its callers do at the same time."""

import asyncio
from itertools import pairwise

import pytest
import sqlalchemy as sa

from sessiond.domain import TurnUsage
from sessiond.store.errors import NotOwnerError, StaleSessionError, StoreError
from sessiond.store.records import SessionChoice
from sessiond.store.store import Store
from tests.databases import PATIENCE_S
from tests.store.rows import item, kept, lost, prompt, session, turn

FULL = [1, 2, 3, 4, 5]


async def open_session(store):
    await store.begin_turn(turn(), session=session(), prompt=prompt())
    await store.commit_turn(kept())


async def test_a_kept_turn_moves_the_tip_and_joins_the_context(store):
    await store.begin_turn(turn(), session=session(), prompt=prompt())
    before = await store.find_session("ann", "conv_1")
    assert (before.tip_id, before.context_tokens) == (None, 2)
    assert await store.context_ids("ann", "sys_1", None) == [1, 2]
    await store.commit_turn(kept())
    after = await store.find_session("ann", "conv_1")
    assert (after.tip_id, after.context_tokens, after.last_active_at) == ("resp_1", 5, 3.0)
    assert await store.context_ids("ann", "sys_1", "resp_1") == FULL
    row = await store.find_turn("ann", "resp_1")
    assert row.usage == TurnUsage(new_tokens=2, output_tokens=1, ttft_ms=1.5)
    assert row.is_checkpoint
    assert await store.reply_text("ann", "resp_1") == "yes"


async def test_a_lost_turn_moves_nothing_and_stays_for_inspection(store):
    await store.begin_turn(turn(), session=session(), prompt=prompt())
    await store.abort_turn(lost())
    row = await store.find_turn("ann", "resp_1")
    assert (row.status, row.reason, row.is_checkpoint) == ("cancelled", "cancelled", False)
    assert (await store.find_session("ann", "conv_1")).tip_id is None


async def test_a_turn_ends_once(store):
    await store.begin_turn(turn(), session=session(), prompt=prompt())
    await store.abort_turn(lost())
    for work in (store.commit_turn(kept()), store.abort_turn(lost())):
        with pytest.raises(StoreError, match="resp_1 is not running"):
            await work


async def test_the_same_ending_twice_is_as_good_as_once(store):
    await open_session(store)
    await store.commit_turn(kept())
    page = await store.context_items("ann", "resp_1", limit=10, after=None, order="asc")
    assert [each.text for each in page.items] == ["hi", "yes"]


async def test_a_tip_moves_only_from_where_the_turn_began(store):
    await open_session(store)
    for name in ("resp_2", "resp_3"):
        await store.begin_turn(turn(name, "resp_1", start=5), session=None, prompt=None)
    await store.commit_turn(kept("resp_2", "resp_1", tokens=8))
    with pytest.raises(StaleSessionError):
        await store.commit_turn(kept("resp_3", "resp_1", tokens=8))
    assert (await store.find_turn("ann", "resp_3")).status == "running"  # nothing was written
    assert await store.context_ids("ann", "sys_1", "resp_2") == [*FULL, 3, 4, 5]


async def test_a_closed_session_takes_no_ending(store):
    await store.begin_turn(turn(), session=session(), prompt=prompt())
    assert await store.close_session("ann", "conv_1", 4.0)
    assert not await store.close_session("ann", "conv_1", 5.0)
    with pytest.raises(StoreError):
        await store.commit_turn(kept())
    assert (await store.find_session("ann", "conv_1")).closed_at == 4.0


async def test_forks_share_their_ancestors(store):
    await open_session(store)
    await store.begin_turn(turn("resp_2", "resp_1", start=5), session=None, prompt=None)
    await store.commit_turn(kept("resp_2", "resp_1", tokens=8))
    fork = session("conv_2", tip_id="resp_1", tokens=5)
    await store.begin_turn(
        turn("resp_3", "resp_1", session_id="conv_2", ids=(9,), start=5), session=fork, prompt=None
    )
    await store.commit_turn(kept("resp_3", "resp_1", session_id="conv_2", ids=(8,), tokens=7))
    assert await store.context_ids("ann", "sys_1", "resp_3") == [*FULL, 9, 8]
    assert await store.context_ids("ann", "sys_1", "resp_2") == [*FULL, 3, 4, 5]
    assert await store.covers("ann", "resp_1", "resp_3")
    assert not await store.covers("ann", "resp_2", "resp_3")
    assert not await store.covers("ann", "resp_1", None)


async def test_an_unknown_parent_or_session_is_refused_whole(store):
    with pytest.raises(StoreError):
        await store.begin_turn(turn(parent_id="resp_none"), session=session(), prompt=prompt())
    assert await store.find_session("ann", "conv_1") is None
    with pytest.raises(StoreError):
        await store.begin_turn(turn(), session=None, prompt=None)


async def test_rows_of_others_do_not_exist(store):
    await open_session(store)
    assert await store.find_session("bob", "conv_1") is None
    assert await store.find_turn("bob", "resp_1") is None
    assert await store.context_ids("bob", "sys_1", "resp_1") == []
    assert await store.session_detail("bob", "conv_1") is None
    assert await store.list_sessions(SessionChoice(user_id="bob"), limit=9, after=None) == (
        (),
        False,
    )
    assert await store.list_sessions(SessionChoice(user_id="bob"), limit=9, after="conv_1") == (
        (),
        False,
    )
    assert await store.reply_text("bob", "resp_1") == ""
    assert await store.find_item("bob", "resp_1", item("resp_1").id) is None
    for page in (
        await store.context_items("bob", "resp_1", limit=9, after=None, order="asc"),
        await store.turn_items("bob", "resp_1", limit=9, after=None, order="asc"),
    ):
        assert page.items == ()
    assert not await store.covers("bob", "resp_1", "resp_1")
    with pytest.raises(NotOwnerError):
        await store.reset_session("bob", "conv_1", 9.0, epoch=1)
    assert not await store.close_session("bob", "conv_1", 9.0)
    assert not await store.set_metadata("bob", "conv_1", {"x": "y"})
    assert not await store.delete_turn("bob", "resp_1", 9.0)
    with pytest.raises(StoreError):
        await store.commit_turn(kept(user_id="bob"))
    assert await store.context_ids("ann", "sys_1", "resp_1") == FULL


async def test_turns_that_were_running_at_a_start_are_failed(store):
    await open_session(store)
    await store.begin_turn(turn("resp_2", "resp_1", start=5), session=None, prompt=None)
    assert await store.fail_running(9.0) == 1
    assert await store.fail_running(9.0) == 0
    row = await store.find_turn("ann", "resp_2")
    assert (row.status, row.error.code, row.finished_at) == ("failed", "engine_restarted", 9.0)
    detail = await store.session_detail("ann", "conv_1")
    assert [each.id for each in detail.context] == ["resp_1"]
    assert [each.id for each in detail.others] == ["resp_2"]


async def test_the_end_of_a_turn_outweighs_the_mark_of_another_server_that_started(store):
    await open_session(store)
    await store.begin_turn(turn("resp_2", "resp_1", start=5), session=None, prompt=None)
    await store.fail_running(9.0)
    await store.commit_turn(kept("resp_2", "resp_1", tokens=8))
    row = await store.find_turn("ann", "resp_2")
    assert (row.status, row.error, row.context_tokens) == ("completed", None, 8)
    assert (await store.find_session("ann", "conv_1")).tip_id == "resp_2"
    await store.begin_turn(turn("resp_3", "resp_2", start=8), session=None, prompt=None)
    await store.fail_running(9.0)
    await store.abort_turn(lost("resp_3"))
    row = await store.find_turn("ann", "resp_3")
    assert (row.status, row.error) == ("cancelled", None)


async def test_a_marked_turn_whose_session_has_moved_on_joins_nothing(store):
    await open_session(store)
    await store.begin_turn(turn("resp_2", "resp_1", start=5), session=None, prompt=None)
    await store.fail_running(9.0)
    await store.begin_turn(turn("resp_3", "resp_1", start=5), session=None, prompt=None)
    await store.commit_turn(kept("resp_3", "resp_1", tokens=8))
    with pytest.raises(StaleSessionError):
        await store.commit_turn(kept("resp_2", "resp_1", tokens=8))
    assert (await store.find_turn("ann", "resp_2")).status == "failed"
    assert (await store.find_session("ann", "conv_1")).tip_id == "resp_3"


async def test_token_ids_are_stored_as_bytes_and_read_as_they_were(url, store):
    ids = (0, 1, 255, 256, 65536, 2**32 - 1)
    await store.begin_turn(turn(ids=ids), session=session(), prompt=prompt())
    await store.commit_turn(kept(ids=ids[::-1]))
    assert await store.context_ids("ann", "sys_1", "resp_1") == [1, 2, *ids, *ids[::-1]]
    engine = sa.create_engine(url.replace("+aiosqlite", ""))
    with engine.connect() as connection:
        stored = connection.scalar(sa.text("SELECT input_ids FROM turns"))
    engine.dispose()
    assert stored[8:12] == b"\xff\x00\x00\x00"


async def test_t48_fifty_writers_at_once_on_two_stores_are_never_locked_out(url, store):
    """The second store stands for another process: they share nothing but the file."""
    other = Store(url, timeout_s=PATIENCE_S)
    await store.create_session(session(), prompt())

    async def talk(number):
        mine = store if number % 2 else other
        name = f"conv_w{number}"
        await mine.begin_turn(
            turn(f"resp_{number}_0", session_id=name),
            session=session(name),
            prompt=None,
        )
        await mine.commit_turn(kept(f"resp_{number}_0", session_id=name))
        for step in (1, 2):
            parent = f"resp_{number}_{step - 1}"
            this = f"resp_{number}_{step}"
            await mine.begin_turn(turn(this, parent, session_id=name), session=None, prompt=None)
            await mine.commit_turn(kept(this, parent, session_id=name))
            await mine.find_session("ann", name)

    await asyncio.gather(*(talk(number) for number in range(50)))
    found, _ = await other.list_sessions(SessionChoice(user_id="ann"), limit=100, after=None)
    assert len(found) == 51
    assert {detail.usage.turns for detail in found} == {0, 3}
    assert await store.context_ids("ann", "sys_1", "resp_49_2") == [1, 2, *(3 * [3, 4, 5])]
    await other.close()


async def test_readers_are_not_held_up_by_a_writer(url, store):
    await open_session(store)
    engine = sa.create_engine(url.replace("+aiosqlite", ""))
    blocker = engine.connect()
    blocker.execute(sa.text("UPDATE sessions SET tip_id = NULL WHERE id = 'conv_1'"))
    write = asyncio.create_task(store.set_metadata("ann", "conv_1", {"a": "b"}))
    found = await asyncio.gather(*(store.find_session("ann", "conv_1") for _ in range(20)))
    assert all(each.metadata == {} for each in found)
    assert not write.done()
    blocker.rollback()
    blocker.close()
    engine.dispose()
    assert await write


async def test_a_cancelled_writer_loses_neither_its_work_nor_a_connection(store):
    await open_session(store)
    for number in range(20):
        task = asyncio.create_task(store.set_metadata("ann", "conv_1", {"n": str(number)}))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # when the cancelled one returns, what it began is done or will never be
        metadata = (await store.find_session("ann", "conv_1")).metadata
        assert metadata == ({"n": str(number)} if number % 5 else metadata)
    assert await store.set_metadata("ann", "conv_1", {"n": "last"})


async def test_items_are_paged_in_the_order_of_the_context(store):
    await open_session(store)
    tip = "resp_1"
    for number in range(2, 6):
        name = f"resp_{number}"
        await store.begin_turn(turn(name, tip), session=None, prompt=None)
        await store.commit_turn(kept(name, tip))
        tip = name
    every = await store.context_items("ann", tip, limit=100, after=None, order="asc")
    assert [each.response_id for each in every.items] == [
        f"resp_{number}" for number in range(1, 6) for _ in range(2)
    ]
    down = await store.context_items("ann", tip, limit=100, after=None, order="desc")
    assert down.items == every.items[::-1]
    for first, second in pairwise(every.items):
        page = await store.context_items("ann", tip, limit=1, after=first.id, order="asc")
        assert page.items == (second,)
        page = await store.context_items("ann", tip, limit=1, after=second.id, order="desc")
        assert page.items == (first,)
    nothing = await store.context_items("ann", tip, limit=5, after="msg_none", order="asc")
    assert nothing.items == ()
