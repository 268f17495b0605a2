"""Limits as a user meets them: turns at a time, sessions, contexts, priorities, what is told."""

import asyncio

import pytest

from sessiond.domain import AttachmentId, PolicyChoice
from sessiond.errors import RequestError
from tests.harness.service import ANN, World, ask, finish
from tests.sessions.quota_words import PREFIX, limit, refusal_of, states, to_minute


class TestTurnsAtATime:
    async def test_one_more_than_allowed_is_refused_and_told_to_come_back(self, world, engine):
        await limit(world, max_concurrent_turns=2)
        engine.auto = False
        turns = [await world.begin(ask("hi")) for _ in range(2)]
        refused = await refusal_of(world, ask("hi"))
        assert (refused.code, refused.status) == ("rate_limit_exceeded", 429)
        assert refused.retry_after_s >= 1
        assert "max_concurrent_turns is 2" in refused.message
        engine.finish(turns[0].accepted.response_id)
        await finish(turns[0])
        turns.append(await world.begin(ask("hi")))
        for turn in turns[1:]:
            engine.finish(turn.accepted.response_id)
            await finish(turn)

    async def test_turns_of_a_lane_wait_for_their_place_and_count_when_they_run(
        self, world, engine
    ):
        await limit(world, max_concurrent_turns=1)
        engine.auto = False
        first = await world.begin(ask("one"))
        session = first.accepted.session_id
        waiting = asyncio.create_task(world.begin(ask("two", conversation=session)))
        engine.finish(first.accepted.response_id)
        await finish(first)
        second = await waiting
        engine.finish(second.accepted.response_id)
        assert (await finish(second)).status == "completed"


class TestSessions:
    async def test_no_more_are_opened_than_allowed_forks_included(self, world):
        await limit(world, max_sessions=2)
        first, _ = await world.turn(ask("one"))
        await world.turn(ask("two", conversation=first.accepted.session_id))
        await world.turn(ask("fork", previous_response_id=first.accepted.response_id))
        for request in (ask("new"), ask("f", previous_response_id=first.accepted.response_id)):
            refused = await refusal_of(world, request)
            assert (refused.code, refused.status) == ("quota_exceeded", 429)
            assert refused.retry_after_s is None, "no waiting helps"
        with pytest.raises(RequestError, match="max_sessions is 2"):
            await world.service.openings.create(ANN, (), {})
        await world.service.conversations.close(ANN, first.accepted.session_id)
        await world.service.openings.create(ANN, (), {})

    @pytest.mark.parametrize("cut", ["cancelled", "failed", "disconnected", "lost"])
    async def test_u19_a_first_turn_that_was_cut_leaves_nothing_that_counts(
        self, world, engine, cut
    ):
        await limit(world, max_sessions=1)
        other = AttachmentId("sock_2")
        world.service.housekeeping.attach(other)
        engine.auto = False
        turn = await world.begin(ask("hi"), attachment=other)
        assert (await refusal_of(world, ask("two at once"))).code == "quota_exceeded"
        match cut:
            case "cancelled":
                turn.cancel(keep=False)
            case "failed":
                engine.begin(turn.response_id)
                engine.fail(turn.response_id, "internal_error")
            case "disconnected":
                await world.service.housekeeping.detach(other)
            case "lost":
                engine.lose()
        await finish(turn)
        engine.auto = True
        again, _ = await world.turn(ask("again"))
        refused = await refusal_of(world, ask("on", conversation=turn.accepted.session_id))
        assert refused.code == "quota_exceeded", "it counts again with its next turn"
        await world.service.conversations.close(ANN, again.accepted.session_id)
        await world.turn(ask("on", conversation=turn.accepted.session_id))

    async def test_u19_a_session_that_was_reset_or_opened_without_a_turn_still_counts(self, world):
        await limit(world, max_sessions=1)
        turn, _ = await world.turn(ask("hi"))
        session = turn.accepted.session_id
        await world.service.conversations.reset(ANN, session)
        assert (await refusal_of(world, ask("new"))).code == "quota_exceeded"
        await world.turn(ask("on", conversation=session))
        await world.service.conversations.close(ANN, session)
        await world.service.openings.create(ANN, (), {})
        assert (await refusal_of(world, ask("new"))).code == "quota_exceeded"

    async def test_a_fork_that_nobody_holds_makes_room_the_least_recently_used_first(self, world):
        await limit(world, max_sessions=4)
        main, _ = await world.turn(ask("main"))
        tip = main.accepted.response_id
        await world.turn(ask("on", conversation=main.accepted.session_id))
        forks = []
        for number in range(3):
            world.clock.advance(1)
            other = AttachmentId(f"sock_of_fork_{number}")
            world.service.housekeeping.attach(other)
            request = ask(f"fork {number}", previous_response_id=tip)
            fork, _ = await world.turn(request, attachment=other)
            forks.append((fork.accepted.session_id, fork.accepted.response_id))
            request = ask("on", conversation=fork.accepted.session_id)
            await world.turn(request, attachment=other)
            if number > 0:
                await world.service.housekeeping.detach(other)  # the first goes on being held
        new, _ = await world.turn(ask("new"))
        assert await states(world, forks) == ["idle", "closed", "cold"]
        # The last one would be next, but a fork does not take away what it is built on.
        refused = await refusal_of(world, ask("deeper", previous_response_id=forks[2][1]))
        assert refused.code == "quota_exceeded"
        view = await world.service.openings.create(ANN, (), {})
        assert await states(world, forks) == ["idle", "closed", "closed"]
        await refusal_of(world, ask("one too many"))
        for session in (main.accepted.session_id, new.accepted.session_id, view.id):
            assert (await world.service.inspector.session(ANN, session)).state != "closed"

    async def test_an_open_session_goes_on_where_no_other_may_be_opened(self, world):
        turn, _ = await world.turn(ask("one"))
        await limit(world, max_sessions=0)
        await world.turn(ask("two", conversation=turn.accepted.session_id))


class TestContexts:
    async def test_a_session_is_trimmed_to_what_its_user_may_hold(self, url, engine):
        world = await World.start(url, engine, policy=PolicyChoice(type="sliding_window"))
        await limit(world, max_context_tokens=120)
        turn, _ = await world.turn(ask("x" * 30, max_output_tokens=6))
        for _ in range(4):
            turn, _ = await world.turn(
                ask("x" * 30, conversation=turn.accepted.session_id, max_output_tokens=6)
            )
            assert len(await world.context(turn.accepted.session_id)) <= 120
        await world.stop()

    async def test_without_trimming_it_is_refused_by_the_name_of_the_limit(self, world):
        await limit(world, max_context_tokens=60)
        refused = await refusal_of(world, ask("x" * 60))
        assert refused.code == "context_length_exceeded"
        assert "limit of the quota's max_context_tokens is 60" in refused.message
        with pytest.raises(RequestError, match="max_context_tokens"):
            await world.service.openings.create(ANN, ask("x" * 60).input, {})


class TestTerms:
    async def test_the_engine_is_told_the_users_limits_and_share(self, world, engine):
        await limit(world, weight=2.5, max_resident_blocks=7, max_host_bytes=8, max_disk_bytes=9)
        turn, _ = await world.turn(ask("hi"))
        terms = engine.turns[turn.accepted.response_id].command.terms
        assert (terms.weight, terms.priority, terms.max_blocks) == (2.5, 1, 7)
        assert (terms.max_host_bytes, terms.max_disk_bytes) == (8, 9)

    @pytest.mark.parametrize(
        ("wanted", "most", "given"),
        [("high", None, 2), ("high", "normal", 1), ("high", "low", 0), ("low", "high", 0)],
    )
    async def test_a_priority_is_never_above_what_the_user_may_have(
        self, world, engine, wanted, most, given
    ):
        await limit(world, max_priority=most)
        turn, _ = await world.turn(ask("hi", priority=wanted))
        assert engine.turns[turn.accepted.response_id].command.terms.priority == given
        session = turn.accepted.session_id
        await world.service.settings.update(ANN, session, priority=wanted)
        turn, _ = await world.turn(ask("and", conversation=session))
        assert engine.turns[turn.accepted.response_id].command.terms.priority == given


class TestHeaders:
    async def test_they_tell_what_is_left(self, world, engine):
        await limit(world, tokens_per_minute=300, tokens_per_day=1000, max_concurrent_turns=3)
        world.clock.tick_s = 0.0
        to_minute(world, 20)
        engine.auto = False
        turn = await world.begin(ask("hi", max_output_tokens=50))
        taken = PREFIX + 6 + 50
        assert turn.headers == {
            "x-ratelimit-limit-requests": "3",
            "x-ratelimit-remaining-requests": "2",
            "x-ratelimit-reset-requests": "0s",
            "x-ratelimit-limit-tokens": "300",
            "x-ratelimit-remaining-tokens": str(300 - taken),
            "x-ratelimit-reset-tokens": "40s",
        }
        refused = await refusal_of(world, ask("hi", max_output_tokens=280 - PREFIX))
        assert refused.headers["x-ratelimit-remaining-tokens"] == str(300 - taken)
        assert await world.service.quotas.headers("ann") == turn.headers
        engine.finish(turn.accepted.response_id)
        await finish(turn)

    async def test_the_window_with_less_left_is_told(self, world):
        await limit(world, tokens_per_minute=300, tokens_per_day=100)
        headers = await world.service.quotas.headers("ann")
        assert headers["x-ratelimit-limit-tokens"] == "100"
        assert headers["x-ratelimit-reset-tokens"] == "0s", "nothing was taken"

    async def test_without_limits_nothing_is_said(self, world):
        turn, _ = await world.turn(ask("hi"))
        assert turn.headers == {}
        assert await world.service.quotas.headers("ann") == {}


class TestRefusalsAreCounted:
    async def test_by_the_limit_that_refused(self, world, monkeypatch):
        seen = []
        monkeypatch.setattr(world.service.quotas, "_on_refused", seen.append)
        await limit(world, max_sessions=1, tokens_per_minute=200)
        await world.turn(ask("x" * 100, max_output_tokens=6))
        await refusal_of(world, ask("x" * 100))
        await limit(world, max_sessions=None)
        await refusal_of(world, ask("x" * 100, max_output_tokens=6))
        assert seen == ["max_sessions", "tokens_per_minute"]
