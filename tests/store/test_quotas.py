"""Quotas in SQL: taken at once or not at all, settled by every ending, reaped after a crash."""

import asyncio
import random
from dataclasses import replace

import pytest

from sessiond.domain import TurnError, TurnUsage
from sessiond.quota import Quota, charged_tokens
from sessiond.store.errors import QuotaExceededError, StoreError
from sessiond.store.records import NewReservation
from sessiond.store.store import Store
from tests.databases import PATIENCE_S
from tests.soak import SOAK
from tests.store.rows import kept, lost, prompt, session, turn

NOON = 1_800_014_400.0  # a minute and a day begin 14,400 s before
MINUTE = 60.0


def reservation(turn_id="resp_1", tokens=100, now=NOON, lasts_s=30.0):
    return NewReservation(turn_id=turn_id, tokens=tokens, now=now, expires_at=now + lasts_s)


async def begin(store, turn_id="resp_1", tokens=100, now=NOON, *, name=None, user_id="ann"):
    name = name or f"conv_{turn_id}"
    return await store.begin_turn(
        replace(
            turn(turn_id, user_id=user_id, session_id=name),
            prompt_id=f"sys_{turn_id}",
            created_at=now,
        ),
        session=session(name, user_id, f"sys_{turn_id}"),
        prompt=prompt(f"sys_{turn_id}"),
        reservation=reservation(turn_id, tokens, now),
    )


def used(new, output=0, recomputed=0):
    return TurnUsage(new_tokens=new, output_tokens=output, recomputed_tokens=recomputed)


async def end(store, turn_id, usage, now=NOON):
    row = kept(turn_id, session_id=f"conv_{turn_id}")
    row = replace(row, prompt_id=f"sys_{turn_id}", usage=usage, finished_at=now)
    await store.commit_turn(row)


async def use_of(store, user_id="ann"):
    return (await store.quotas.account(user_id)).use


async def held(store):
    use = await use_of(store)
    return use.turns, use.minute_tokens, use.day_tokens, use.total_tokens


class TestFields:
    async def test_without_a_row_nothing_is_limited_and_nothing_was_taken(self, store):
        account = await store.quotas.account("nobody")
        assert account.quota == Quota()
        assert (account.use.turns, account.use.sessions, account.use.total_tokens) == (0, 0, 0)

    async def test_a_change_leaves_what_it_does_not_name(self, store):
        everything = {
            "max_sessions": 1,
            "max_concurrent_turns": 2,
            "max_resident_blocks": 3,
            "max_host_bytes": 2**40,
            "max_disk_bytes": 2**41,
            "tokens_per_minute": 6,
            "tokens_per_day": 2**33,
            "max_context_tokens": 8,
            "max_priority": "normal",
            "weight": 2.5,
        }
        assert (await store.quotas.set_quota("ann", everything, NOON)).quota == Quota(**everything)
        changed = await store.quotas.set_quota("ann", {"max_sessions": None, "weight": 1.0}, NOON)
        assert changed.quota == Quota(**everything | {"max_sessions": None, "weight": 1.0})
        assert (await store.quotas.account("bob")).quota == Quota()


class TestReserving:
    async def test_a_turn_takes_its_worst_case_and_gives_back_what_it_did_not_need(self, store):
        await store.quotas.set_quota("ann", {"tokens_per_minute": 150}, NOON)
        account = await begin(store, "resp_1", 100)
        assert (account.use.minute_tokens, account.quota.tokens_per_minute) == (100, 150)
        with pytest.raises(QuotaExceededError) as refused:
            await begin(store, "resp_2", 51)
        assert refused.value.account.use.minute_tokens == 100
        assert await store.find_turn("ann", "resp_2") is None, "nothing of it was written"
        await end(store, "resp_1", used(20, 10, recomputed=5))
        assert await held(store) == (0, 35, 35, 35)
        await begin(store, "resp_3", 115)
        assert await held(store) == (1, 150, 150, 35)

    async def test_users_take_nothing_from_each_other(self, store):
        await store.quotas.set_quota("ann", {"tokens_per_minute": 100}, NOON)
        await store.quotas.set_quota("bob", {"tokens_per_minute": 100}, NOON)
        await begin(store, "resp_1", 100)
        await begin(store, "resp_2", 100, user_id="bob")

    async def test_the_next_minute_begins_anew_and_the_day_goes_on(self, store):
        await store.quotas.set_quota("ann", {"tokens_per_minute": 100, "tokens_per_day": 150}, NOON)
        await begin(store, "resp_1", 100)
        await begin(store, "resp_2", 50, NOON + MINUTE)
        assert await held(store) == (2, 50, 150, 0)
        with pytest.raises(QuotaExceededError):
            await begin(store, "resp_3", 1, NOON + 2 * MINUTE)

    async def test_a_refund_goes_to_the_window_it_was_reserved_from(self, store):
        await store.quotas.set_quota("ann", {"tokens_per_minute": 100}, NOON)
        await begin(store, "resp_1", 100)
        await begin(store, "resp_2", 60, NOON + MINUTE)
        await end(store, "resp_1", used(10), NOON + MINUTE)
        assert await held(store) == (1, 60, 70, 10), "the new minute got nothing of the old one"
        with pytest.raises(QuotaExceededError):
            await begin(store, "resp_3", 41, NOON + MINUTE)

    async def test_a_server_whose_clock_is_behind_does_not_open_an_old_window_again(self, store):
        await store.quotas.set_quota("ann", {"tokens_per_minute": 100}, NOON)
        await begin(store, "resp_1", 90, NOON + MINUTE)
        with pytest.raises(QuotaExceededError):
            await begin(store, "resp_2", 90, NOON + MINUTE - 1)
        await begin(store, "resp_3", 10, NOON + MINUTE - 1)
        assert (await use_of(store)).minute_start == NOON + MINUTE

    async def test_a_session_is_refused_where_as_many_are_open(self, store):
        await store.quotas.set_quota("ann", {"max_sessions": 1}, NOON)
        await begin(store, "resp_1")
        with pytest.raises(QuotaExceededError):
            await begin(store, "resp_2")
        with pytest.raises(QuotaExceededError):
            await store.create_session(session("conv_3", prompt_id="sys_3"), prompt("sys_3"))
        await store.begin_turn(  # in the session that is open
            replace(turn("resp_4", session_id="conv_resp_1"), prompt_id="sys_resp_1"),
            session=None,
            prompt=None,
            reservation=reservation("resp_4"),
        )
        await store.close_session("ann", "conv_resp_1", NOON)
        await store.create_session(session("conv_5", prompt_id="sys_5"), prompt("sys_5"))


class TestSettling:
    async def test_the_same_ending_twice_settles_once(self, store):
        await begin(store)
        await end(store, "resp_1", used(20, 10))
        await end(store, "resp_1", used(20, 10))
        assert await held(store) == (0, 30, 30, 30)

    async def test_a_commit_that_fails_settles_nothing(self, store):
        await begin(store)
        await store.close_session("ann", "conv_resp_1", NOON)
        with pytest.raises(StoreError):
            await end(store, "resp_1", used(20, 10))
        assert await held(store) == (1, 100, 100, 0)
        with pytest.raises(StoreError):  # with the session its rows are deleted
            await store.abort_turn(lost())
        assert await store.quotas.reap_reservations(NOON + 60) == 1
        assert await held(store) == (0, 0, 0, 0)

    @pytest.mark.parametrize("code", ["internal_error", "engine_restarted"])
    async def test_a_fault_of_ours_refunds_the_output(self, store, code):
        await begin(store)
        error = TurnError(code=code, message="")
        row = replace(lost(), status="failed", error=error, usage=used(20, 10))
        await store.abort_turn(replace(row, finished_at=NOON))
        assert await held(store) == (0, 20, 20, 20)
        assert charged_tokens(used(20, 10), TurnError(code="queue_timeout", message="")) == 30

    async def test_what_a_dead_server_had_reserved_comes_back_when_it_expires(self, store):
        await begin(store, "resp_1", 100)
        await begin(store, "resp_2", 50)
        await store.quotas.renew_reservations(["resp_2"], NOON + 60)
        assert await store.quotas.reap_reservations(NOON + 29) == 0
        assert await store.quotas.reap_reservations(NOON + 30) == 1
        assert await held(store) == (1, 50, 50, 0)
        assert await store.quotas.reap_reservations(NOON + 60) == 1
        assert await held(store) == (0, 0, 0, 0)

    async def test_a_turn_that_ends_after_its_reservation_expired_is_charged_all_the_same(
        self, store
    ):
        await begin(store)
        await store.quotas.reap_reservations(NOON + 30)
        await end(store, "resp_1", used(20, 10), NOON + 31)
        assert await held(store) == (0, 30, 30, 30)

    async def test_residency_adds_up(self, store):
        await begin(store)
        await store.quotas.add_residency({"ann": 1.5e12})
        await store.quotas.add_residency({"ann": 0.5e12})
        assert (await use_of(store)).byte_seconds == 2e12


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20 if SOAK else 4))
async def test_200_turns_at_once_never_take_more_than_there_is_by_one_token(url, store, seed):
    """Two servers, turns that end while others begin. Every limit is reached, none is passed."""
    chance = random.Random(seed)
    other = Store(url, timeout_s=PATIENCE_S)
    minute, day, turns, open_sessions = 3000, 9000, 12, 150
    limits = {
        "tokens_per_minute": minute,
        "tokens_per_day": day,
        "max_concurrent_turns": turns,
        "max_sessions": open_sessions,
    }
    await store.quotas.set_quota("ann", limits, NOON)
    at_once = asyncio.Semaphore(24)
    refused, spent = [], {}

    async def one(number):
        async with at_once:
            mine, name = chance.choice([store, other]), f"resp_{number}"
            worst, real = chance.randint(10, 120), chance.randint(1, 60)
            now = NOON + MINUTE * (number // 50)
            try:
                account = await begin(mine, name, worst, now)
            except QuotaExceededError as error:
                refused.append(error)
                return
            use = account.use
            assert use.minute_tokens <= minute
            assert use.day_tokens <= day
            assert use.turns <= turns
            assert use.sessions < open_sessions, "counted before it was opened"
            await asyncio.sleep(0)
            spent[name] = min(worst, real)
            await end(mine, name, used(spent[name]), now)

    await asyncio.gather(*(one(number) for number in range(200)))
    use = await use_of(store)
    assert (use.turns, use.total_tokens) == (0, sum(spent.values()))
    assert use.day_tokens == use.total_tokens
    assert use.sessions == len(spent) <= open_sessions
    assert refused
    await other.close()
