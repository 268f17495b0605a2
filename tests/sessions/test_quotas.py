"""What turns cost, when the windows end, and that no number of turns at once takes too much."""

import asyncio
import random

import pytest

from sessiond.errors import RequestError
from sessiond.quota import charged_tokens, windows_at
from sessiond.store.errors import StoreError
from sessiond.store.store import Store
from tests.harness.service import ANN, BOB, SOCKET, ByteFormat, World, ask, finish, settled, until
from tests.sessions.quota_words import PREFIX, limit, refusal_of, to_minute, use_of, use_when
from tests.soak import SOAK


class TestCharges:
    async def test_a_turn_costs_what_was_computed_and_written(self, world):
        _, finished = await world.turn(ask("hi"))
        use = await use_of(world)
        assert use.total_tokens == charged_tokens(finished.usage) > 0
        assert (use.turns, use.day_tokens) == (0, use.total_tokens)

    async def test_while_it_runs_its_worst_case_is_taken(self, world, engine):
        engine.auto = False
        turn = await world.begin(ask("hi", max_output_tokens=50))
        use = await use_of(world)
        assert (use.turns, use.minute_tokens) == (1, PREFIX + len("hi") + 4 + 50)
        engine.finish(turn.accepted.response_id)
        await finish(turn)

    @pytest.mark.parametrize(
        "end",
        ["done", "max_output_tokens", "cancelled", "rolled back", "deadline", "queue_timeout"],
    )
    async def test_every_ending_settles(self, world, engine, end):
        engine.auto = False
        turn = await world.begin(ask("hello there"))
        name = turn.accepted.response_id
        engine.begin(name)
        engine.say(name, "some")
        match end:
            case "done":
                engine.finish(name)
            case "rolled back":
                turn.cancel(keep=False)
            case "queue_timeout":
                engine.fail(name, "queue_timeout")
            case _:
                engine.incomplete(name, end)
        finished = await finish(turn)
        use = await use_of(world)
        assert finished.usage.output_tokens == 4
        assert (use.turns, use.day_tokens) == (0, charged_tokens(finished.usage))

    async def test_a_client_that_leaves_is_charged_what_it_took(self, world, engine):
        engine.auto = False
        turn = await world.begin(ask("hello"))
        engine.begin(turn.accepted.response_id)
        engine.say(turn.accepted.response_id, "abc")
        await world.service.housekeeping.detach(SOCKET)
        use = await use_of(world)
        assert use.turns == 0
        usage = (
            await world.service.inspector.response(ANN, turn.accepted.response_id)
        ).finished.usage
        assert use.total_tokens == charged_tokens(usage) == usage.input_tokens + 3

    async def test_a_lost_engine_refunds_the_output(self, world, engine):
        engine.auto = False
        turn = await world.begin(ask("hello"))
        engine.begin(turn.accepted.response_id)
        engine.say(turn.accepted.response_id, "abc")
        engine.lose()
        finished = await finish(turn)
        assert finished.error.code == "engine_restarted"
        use = await use_of(world)
        assert use.turns == 0
        assert use.total_tokens == finished.usage.recomputed_tokens + finished.usage.new_tokens

    async def test_a_reply_that_cannot_be_stored_settles_too(self, world, monkeypatch):
        async def broken(*_when):
            raise StoreError("no")

        monkeypatch.setattr(world.store, "commit_turn", broken)
        monkeypatch.setattr("sessiond.sessions.stream._COMMIT_PAUSES_S", (None,))
        _, finished = await world.turn(ask("hi"))
        assert finished.error.code == "internal_error"
        use = await use_of(world)
        assert (use.turns, use.day_tokens) == (0, finished.usage.new_tokens)

    async def test_a_turn_that_the_engine_never_got_costs_nothing(self, url, engine):
        world = await World.start(url, engine, engine_ready_timeout_s=0.01)
        engine.go_away()
        with pytest.raises(RequestError, match="is restarting"):
            await world.begin(ask("hi"))
        use = await use_of(world)
        assert (use.turns, use.day_tokens) == (0, 0)
        await world.stop()

    async def test_items_that_no_engine_works_on_cost_nothing_until_they_are_computed(self, world):
        view = await world.service.openings.create(ANN, ask("one", "two").input, {})
        assert (await use_of(world)).total_tokens == 0
        _, finished = await world.turn(ask("three", conversation=view.id))
        assert (await use_of(world)).total_tokens == charged_tokens(finished.usage)

    async def test_a_prefill_is_charged_its_input(self, world):
        _, finished = await world.turn(ask("hello", generate=False))
        assert finished.usage.output_tokens == 0
        assert (await use_of(world)).total_tokens == finished.usage.input_tokens > 0


class TestWindows:
    @pytest.mark.parametrize("second", [0.0, 12.25, 58.5, 59.999])
    async def test_retry_after_is_right_within_a_second(self, world, second):
        await limit(world, tokens_per_minute=200)
        world.clock.tick_s = 0.0
        to_minute(world, second)
        await world.turn(ask("x" * 100, max_output_tokens=6))
        request = ask("x" * 100, max_output_tokens=6)
        refused = await refusal_of(world, request)
        assert refused.code == "rate_limit_exceeded"
        assert refused.status == 429
        assert 0 <= refused.retry_after_s - (60 - second) < 1
        start_s = world.clock.now_s
        world.clock.now_s = start_s + refused.retry_after_s - 1.001
        if world.clock.now_s > start_s:
            assert (await refusal_of(world, request)).code == "rate_limit_exceeded"
        world.clock.now_s = start_s + refused.retry_after_s
        await world.turn(request)

    async def test_a_day_that_is_used_up_ends_at_midnight(self, world):
        await limit(world, tokens_per_day=200)
        world.clock.tick_s = 0.0
        await world.turn(ask("x" * 100, max_output_tokens=6))
        refused = await refusal_of(world, ask("x" * 100, max_output_tokens=6))
        assert refused.code == "quota_exceeded"
        midnight = windows_at(world.clock.now_s).day + 86_400
        assert 0 <= refused.retry_after_s - (midnight - world.clock.now_s) < 1

    async def test_the_longer_wait_is_told(self, world):
        await limit(world, tokens_per_day=200, tokens_per_minute=200)
        await world.turn(ask("x" * 100, max_output_tokens=6))
        refused = await refusal_of(world, ask("x" * 100, max_output_tokens=6))
        assert refused.code == "quota_exceeded"

    async def test_other_users_are_not_held_up(self, world):
        await limit(world, tokens_per_minute=60)
        await world.turn(ask("x" * 20, max_output_tokens=6))
        await refusal_of(world, ask("x" * 20, max_output_tokens=6))
        await world.turn(ask("x" * 20, max_output_tokens=6), caller=BOB)

    async def test_nothing_is_tokenised_for_a_user_who_has_nothing_left(self, world, monkeypatch):
        await limit(world, tokens_per_minute=PREFIX + 15)
        turn, _ = await world.turn(ask("12345", max_output_tokens=6))
        assert (await use_of(world)).minute_tokens == PREFIX + 15
        rendered = []
        plain = ByteFormat.message
        monkeypatch.setattr(
            ByteFormat, "message", lambda *args: rendered.append(args) or plain(*args)
        )
        refused = await refusal_of(world, ask("more", conversation=turn.accepted.session_id))
        assert refused.code == "rate_limit_exceeded"
        await refusal_of(world, ask("more"))
        assert rendered == []
        rows = await world.store.session_detail("ann", turn.accepted.session_id)
        assert (len(rows.context), len(rows.others)) == (1, 0)

    async def test_a_refused_turn_leaves_its_session_as_it_was(self, world):
        await limit(world, tokens_per_minute=200)
        turn, _ = await world.turn(ask("x" * 100, max_output_tokens=6))
        session = turn.accepted.session_id
        before = await world.context(session)
        await refusal_of(world, ask("y" * 20, conversation=session, max_output_tokens=50))
        assert await world.context(session) == before
        to_minute(world, 0)
        await world.turn(ask("again", conversation=session, max_output_tokens=6))

    async def test_a_default_reply_is_no_longer_than_a_minute_allows(self, world, engine):
        await limit(world, tokens_per_minute=100)
        engine.auto = False
        turn = await world.begin(ask("hi"))
        assert turn.plan.max_output_tokens == 100 - PREFIX - 6 - 2
        engine.finish(turn.accepted.response_id)
        await finish(turn)


class TestTimers:
    async def test_a_running_turn_keeps_its_reservation(self, url, engine, monkeypatch):
        world = await World.start(url, engine, reap_every_s=0.001)
        reaps, reap = [], world.store.quotas.reap_reservations

        async def noted(now, reservation_s):
            reaps.append(await reap(now))

        monkeypatch.setattr(world.store.quotas, "reap_reservations", noted)
        engine.auto = False
        turn = await world.begin(ask("hi"))
        for _ in range(10):
            seen = len(reaps)
            world.clock.advance(15)
            await until(lambda seen=seen: len(reaps) > seen)
        assert set(reaps) == {0}
        assert (await use_of(world)).turns == 1
        engine.finish(turn.accepted.response_id)
        await finish(turn)
        await world.stop()

    async def test_what_a_server_that_died_had_reserved_comes_back(self, url, engine):
        dead = await World.start(url, engine)
        engine.auto = False
        await dead.begin(ask("hi"))
        await dead.stop()
        world = await World.start(url, engine)
        use = await use_of(world)
        assert (use.turns, use.day_tokens) == (0, 0)
        await world.stop()

    async def test_residency_is_charged_by_the_time_it_lasts(self, url, engine):
        world = await World.start(url, engine, reap_every_s=0.001)
        await world.turn(ask("hi"))
        (held,) = engine.cached.values()
        start = (await use_of(world)).byte_seconds
        for _ in range(3):
            world.clock.advance(100)
            before = (await use_of(world)).byte_seconds
            await use_when(world, lambda use, before=before: use.byte_seconds > before)
        assert (await use_of(world)).byte_seconds - start == pytest.approx(300 * held, rel=0.02)
        await world.stop()

    async def test_a_database_that_fails_does_not_stop_the_timers(self, url, engine, monkeypatch):
        world = await World.start(url, engine, reap_every_s=0.001)
        calls = []

        async def broken(*_when):
            calls.append(_when)
            raise StoreError("down")

        monkeypatch.setattr(world.store.quotas, "reap_reservations", broken)
        for _ in range(2):
            seen = len(calls)
            world.clock.advance(11)
            await until(lambda seen=seen: len(calls) > seen)
        await world.stop()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20 if SOAK else 4))
async def test_200_turns_at_once_take_no_token_too_many_and_sql_has_the_sum_of_the_events(
    url, engine, seed
):
    """T39: reserved before, refunded after; whatever ends a turn, and however many run."""
    chance = random.Random(seed)
    world = await World.start(url, engine)
    engine.auto = False
    limits = {"tokens_per_minute": 6000, "max_concurrent_turns": 40}
    await limit(world, **limits)
    usages, refused = [], []

    async def one(number):
        text = "x" * chance.randint(1, 80)
        try:
            turn = await world.begin(
                ask(text, max_output_tokens=chance.randint(1, 60)), lane=f"lane{number}"
            )
        except RequestError as error:
            refused.append(error.code)
            return
        account = await world.store.quotas.account("ann")
        assert account.use.minute_tokens <= 6000
        assert account.use.turns <= 40
        name = turn.accepted.response_id
        engine.begin(name)
        engine.say(name, "y" * chance.randint(0, turn.plan.max_output_tokens))
        await asyncio.sleep(0)
        match chance.randrange(4):
            case 0:
                engine.finish(name)
            case 1:
                engine.incomplete(name, "max_output_tokens")
            case 2:
                turn.cancel(keep=True)
            case _:
                turn.cancel(keep=False, reason="disconnected")
        usages.append((await finish(turn)).usage)

    outcomes = await settled(*(one(number) for number in range(200)))
    assert [error for error in outcomes if error is not None] == []
    use = await use_of(world)
    assert use.turns == 0
    assert use.total_tokens == sum(charged_tokens(usage) for usage in usages)
    assert use.minute_tokens == use.day_tokens == use.total_tokens <= 6000
    assert set(refused) == {"rate_limit_exceeded"}
    await world.stop()


async def test_t50_no_connection_is_held_while_replies_are_written(world, engine, url):
    engine.auto = False
    await limit(world, tokens_per_minute=10**6, max_concurrent_turns=60)
    turns = [await world.begin(ask("hi"), lane=f"lane{number}") for number in range(50)]
    await until(lambda: world.store.connections_in_use == 0)
    other = Store(url)  # nobody holds SQLite's lock either
    async with asyncio.timeout(60):
        await other.quotas.set_quota("bob", {"max_sessions": 1}, 0.0)
    await other.close()
    for turn in turns:
        engine.finish(turn.accepted.response_id)
        await finish(turn)
