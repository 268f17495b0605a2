"""Two stores on one database stand for two servers: they share nothing else."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from sessiond.quota import Account
from sessiond.store.errors import NotOwnerError
from sessiond.store.store import Store
from tests.databases import PATIENCE_S
from tests.store.rows import kept, prompt, session, turn

NOW, LEASE_END = 10.0, 25.0


@asynccontextmanager
async def replicas(url, count):
    stores = [Store(url, timeout_s=PATIENCE_S) for _ in range(count)]
    try:
        for store in stores:
            await store.membership.register(NOW, LEASE_END)
        yield stores
    finally:
        for store in stores:
            await store.close()


async def open_session(store):
    await store.begin_turn(turn(), session=session(), prompt=prompt())
    await store.commit_turn(kept())


async def test_the_epoch_rises_with_each_new_owner_and_only_then(url):
    async with replicas(url, 2) as (a, b):
        await open_session(a)
        owners = []
        for store in (a, b, b, a):
            record = await store.claim_session("ann", "conv_1", NOW)
            owners.append((record.owner, record.epoch))
        assert owners == [
            (a.replica_id, 1),
            (b.replica_id, 2),
            (b.replica_id, 2),
            (a.replica_id, 3),
        ]
        assert await a.claim_session("ann", "conv_none", NOW) is None
        assert await a.claim_session("bob", "conv_1", NOW) is None


async def test_no_commit_of_an_earlier_owner_or_epoch_holds(url):
    async with replicas(url, 2) as (a, b):
        await open_session(a)
        await a.begin_turn(turn("resp_2", "resp_1"), session=None, prompt=None)
        assert (await b.claim_session("ann", "conv_1", LEASE_END)).owner == b.replica_id
        refused = [
            a.commit_turn(kept("resp_2", "resp_1")),
            a.begin_turn(turn("resp_3", "resp_1"), session=None, prompt=None),
            a.append_turn(turn("resp_4", "resp_1"), kept("resp_4", "resp_1"), prompt=None),
            a.reset_session("ann", "conv_1", NOW, epoch=1),
            b.commit_turn(kept("resp_2", "resp_1", epoch=1)),
        ]
        for write in refused:
            with pytest.raises(NotOwnerError):
                await write
        record = await a.claim_session("ann", "conv_1", LEASE_END)
        assert (record.owner, record.epoch, record.tip_id) == (a.replica_id, 3, "resp_1")
        with pytest.raises(NotOwnerError):  # the same owner, but not since then
            await a.commit_turn(kept("resp_2", "resp_1", epoch=1))
        for unknown in ("resp_3", "resp_4"):
            assert await a.find_turn("ann", unknown) is None


async def test_a_commit_that_held_is_as_good_when_repeated_after_the_session_was_taken(url):
    async with replicas(url, 2) as (a, b):
        await open_session(a)
        await b.claim_session("ann", "conv_1", NOW)
        await a.commit_turn(kept())
        assert (await b.find_session("ann", "conv_1")).tip_id == "resp_1"


async def test_a_session_is_never_taken_between_the_two_commits_of_a_turn(url):
    """Whatever the order in which they arrive: the owner's turn is whole, or never begun."""
    async with replicas(url, 2) as (a, b):
        await open_session(a)
        tip, epochs, begun = "resp_1", {a: 1, b: 0}, 0
        for number in range(40):
            owner, other = (a, b) if epochs[a] > epochs[b] else (b, a)
            name = f"resp_{number + 2}"
            begin = owner.begin_turn(
                turn(name, tip, epoch=epochs[owner]), session=None, prompt=None
            )
            claim = other.claim_session("ann", "conv_1", NOW)
            if number % 10 == 0:  # one order at least is met whatever the timing
                commit, taken = await begin, await claim
            else:
                commit, taken = await asyncio.gather(begin, claim, return_exceptions=True)
            if isinstance(commit, NotOwnerError):
                assert taken.owner == other.replica_id
                epochs[other] = taken.epoch
            else:
                assert isinstance(commit, Account)
                assert taken.owner == owner.replica_id
                await owner.commit_turn(kept(name, tip, epoch=epochs[owner]))
                tip, begun = name, begun + 1
                if begun % 2:  # the losing side gets a turn, too
                    epochs[other] = (await other.claim_session("ann", "conv_1", NOW)).epoch
        assert (await a.find_session("ann", "conv_1")).tip_id == tip
        assert begun > 0


async def test_replicas_that_find_each_other_dead_at_once_all_live_on(url):
    async with replicas(url, 6) as stores:
        for round_number in range(1, 6):
            late = LEASE_END + round_number * 100
            await asyncio.gather(*(store.membership.renew(late, late + 1) for store in stores))
        await stores[0].create_session(session(), prompt())
        busy = turn()
        await stores[0].begin_turn(busy, session=None, prompt=None)
        assert (await stores[1].claim_session("ann", "conv_1", late)).owner == stores[0].replica_id


async def test_the_lease_ends_with_the_run_or_when_the_next_of_its_name_begins(url):
    async with replicas(url, 1) as (watcher,):
        first = Store(url, replica_name="host:1")
        await first.membership.register(NOW, LEASE_END)
        await first.begin_turn(turn(), session=session(), prompt=prompt())
        assert await watcher.fail_running(NOW) == 0
        second = Store(url, replica_name="host:1")
        await second.membership.register(NOW, LEASE_END)
        assert await second.fail_running(NOW) == 1
        await second.begin_turn(
            turn("resp_2", session_id="conv_2"), session=session("conv_2"), prompt=None
        )
        assert await watcher.fail_running(NOW) == 0
        await second.membership.resign()
        assert await watcher.fail_running(NOW) == 1
        await first.close()
        await second.close()


async def test_sessions_that_were_taken_or_closed_are_told_from_those_that_were_not(url):
    async with replicas(url, 2) as (a, b):
        names = [f"conv_{number}" for number in range(1200)]
        await a.create_session(session(), prompt())
        for name in names[2:5]:
            await a.create_session(session(name), prompt(f"sys_{name}"))
        await b.claim_session("ann", "conv_2", NOW)
        await a.close_session("ann", "conv_3", NOW)
        assert sorted(await a.membership.taken(names)) == ["conv_2", "conv_3"]
        assert await a.membership.taken([]) == []
