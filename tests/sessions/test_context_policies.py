"""Which policy decides what the model sees, within which limits; what a broken one harms."""

import msgspec
import pytest

from sessiond.domain import UNSET, PolicyChoice
from sessiond.errors import RequestError
from tests.harness.service import (
    ANN,
    BOB,
    World,
    ask,
    entries,
    finish,
    rendered,
)
from tests.ipc.loops import INFO
from tests.sessions.fake_engine import FakeEngine
from tests.sessions.trimmed import EXACT, PREFIX, SHIFTED, changes, chat, keep


class TestPrecedence:
    @pytest.mark.parametrize("truncation", [None, "auto"])
    async def test_request_then_session_then_user_then_server(self, url, engine, truncation):
        world = await World.start(url, engine, policy=PolicyChoice(type="sliding_window"))
        views = world.policies.scripted.views
        session, _ = await chat(world, "one", "two", truncation=truncation)
        assert len(views) == 0  # the server's
        await world.service.policies.set_of_user(ANN, "ann", EXACT)
        await world.turn(ask("a", conversation=session, truncation=truncation))
        assert len(views) == 1
        window = PolicyChoice(type="sliding_window")
        await world.service.settings.set_policy(ANN, session, window)
        await world.turn(ask("b", conversation=session, truncation=truncation))
        assert len(views) == 1
        await world.turn(ask("c", conversation=session, truncation=truncation, policy=EXACT))
        assert len(views) == 2
        await world.turn(ask("d", conversation=session, truncation=truncation))
        assert len(views) == 2  # a request's policy is that of one turn
        await world.service.settings.set_policy(ANN, session, None)
        await world.turn(ask("e", conversation=session, truncation=truncation))
        assert len(views) == 3
        assert (await world.service.inspector.session(ANN, session)).policy == "scripted"
        await world.stop()

    async def test_policies_outlive_the_server(self, url, engine):
        world = await World.start(url, engine)
        session, _ = await chat(world, "one", "two")
        await world.service.settings.set_policy(ANN, session, SHIFTED)
        await world.service.policies.set_of_user(BOB, "bob", EXACT)
        await world.stop()
        world = await World.start(url, FakeEngine(), iter(range(1000, 2000)))
        keep(world, 1)
        _, finished = await world.turn(ask("three", conversation=session))
        assert finished.usage.fidelity == "shifted"
        turn, _ = await world.turn(ask("one"), caller=BOB)
        await world.turn(ask("two", conversation=turn.accepted.session_id), caller=BOB)
        assert len(world.policies.scripted.views) == 2
        await world.stop()

    async def test_truncation_disabled_asks_no_policy(self, url, engine):
        world = await World.start(url, engine, policy=EXACT)
        session, _ = await chat(world, "one", "two", truncation="disabled")
        assert world.policies.scripted.views == []
        with pytest.raises(RequestError) as error:
            await world.begin(ask("x" * 1000, conversation=session, truncation="disabled"))
        assert error.value.code == "context_length_exceeded"
        assert "no trimming policy" in error.value.message
        await world.stop()

    async def test_truncation_auto_slides_where_no_policy_is_in_force(self, world):
        session, _ = await chat(world, "x" * 500, "y" * 300)
        with pytest.raises(RequestError, match="no trimming policy is in force"):
            await world.begin(ask("z" * 400, conversation=session))
        _, finished = await world.turn(ask("z" * 400, conversation=session, truncation="auto"))
        assert finished.usage.context == "trimmed"

    async def test_who_is_no_admin_sets_his_own_policy_only(self, world):
        with pytest.raises(RequestError) as error:
            await world.service.policies.set_of_user(ANN, "bob", EXACT)
        assert error.value.code == "permission_denied"

    async def test_a_policy_that_is_not_known_is_refused_everywhere(self, world):
        session, _ = await chat(world, "one")
        bad = PolicyChoice(type="magic")
        for work in (
            world.begin(ask("a", conversation=session, policy=bad)),
            world.service.settings.set_policy(ANN, session, bad),
            world.service.settings.update(ANN, session, policy=bad),
            world.service.policies.set_of_user(ANN, "ann", bad),
        ):
            with pytest.raises(RequestError, match="magic") as error:
                await work
            assert error.value.code == "invalid_value"
        assert (await world.service.inspector.session(ANN, session)).policy == "none"


class TestLimits:
    @pytest.fixture
    async def world(self, url, engine):
        world = await World.start(url, engine, policy=PolicyChoice(type="sliding_window"))
        yield world
        await world.stop()

    async def test_an_explicit_reply_is_reserved_for(self, world, engine):
        session, _ = await chat(world, "a" * 300, "b" * 300)
        _, finished = await world.turn(ask("c", conversation=session, max_output_tokens=512))
        assert finished.usage.context == "trimmed"
        turn = list(engine.turns.values())[-1].command
        assert turn.max_output_tokens == 512
        assert finished.usage.input_tokens + 512 + 2 <= 1024

    async def test_a_reply_that_can_never_fit_does_not_push_the_conversation_out(self, url):
        engine = FakeEngine(msgspec.structs.replace(INFO, total_blocks=100))
        world = await World.start(url, engine, policy=PolicyChoice(type="sliding_window"))
        session, _ = await chat(world, "a" * 300, "b" * 300)
        _, finished = await world.turn(ask("c", conversation=session, max_output_tokens=5000))
        assert finished.usage.context == "full"
        await world.stop()

    async def test_a_turn_that_does_not_fit_alone_is_refused_with_the_numbers(self, world):
        session, _ = await chat(world, "a")
        with pytest.raises(RequestError) as error:
            await world.begin(ask("x" * 1100, conversation=session))
        assert error.value.code == "context_length_exceeded"
        seen = len(PREFIX + rendered(("user", "x" * 1100))) + 1
        assert f"{seen} tokens" in error.value.message
        assert "1024" in error.value.message

    async def test_a_session_holds_no_more_than_its_policy_allows(self, world, engine):
        capped = PolicyChoice(type="sliding_window", parameters={"max_tokens": 200})
        session, _ = await chat(world, "a" * 60, "b" * 60, policy=capped)
        request = ask("c" * 60, conversation=session, policy=capped, max_output_tokens=150)
        _, finished = await world.turn(request)
        command = list(engine.turns.values())[-1].command
        held = finished.usage.input_tokens + command.max_output_tokens + 2
        assert held == 200
        engine.auto = False
        turn = await world.begin(request)
        engine.begin(turn.accepted.response_id)
        engine.incomplete(turn.accepted.response_id, "max_output_tokens")
        assert (await finish(turn)).reason == "context_length"  # 150 was not what cut it
        with pytest.raises(RequestError, match="max_tokens is 200"):
            await world.begin(ask("d" * 190, conversation=session, policy=capped))

    async def test_items_may_be_added_beyond_the_window_and_the_next_turn_makes_room(self, world):
        session, _ = await chat(world, "a" * 400, "b" * 250)
        (said,) = ask("c" * 400).input
        await world.service.conversations.add_items(ANN, session, (said,))
        before = await world.context(session)
        assert len(before) > 1024
        told = await entries(await world.begin(ask(conversation=session)))
        assert [change.reason for change in changes(told)] == ["trimmed"]
        assert changes(told)[0].tokens_before == len(before)
        with pytest.raises(RequestError) as error:
            await world.service.conversations.add_items(ANN, session, tuple(ask("d" * 1100).input))
        assert error.value.code == "context_length_exceeded"


class TestBrokenPolicies:
    @pytest.fixture
    async def world(self, url, engine):
        world = await World.start(url, engine, policy=EXACT)
        yield world
        await world.stop()

    async def test_a_plan_that_breaks_a_law_fails_its_turn_and_harms_nothing(self, world, engine):
        session, _ = await chat(world, "one", "two")
        before, commands = await world.context(session), len(engine.commands)
        keep(world, 1, 7)
        with pytest.raises(
            RequestError, match="invalid plan: kept turns must be of the 2"
        ) as error:
            await world.begin(ask("three", conversation=session))
        assert error.value.code == "internal_error"
        assert (await world.context(session), len(engine.commands)) == (before, commands)
        await world.turn(ask("three", conversation=session))

    async def test_a_policy_that_raises_fails_its_turn(self, world, monkeypatch):
        session, _ = await chat(world, "one")

        def broken(_view):
            raise ZeroDivisionError

        monkeypatch.setattr(world.policies.scripted, "plan", broken)
        with pytest.raises(RequestError, match="the context policy 'scripted' failed") as error:
            await world.begin(ask("two", conversation=session))
        assert error.value.code == "internal_error"

    async def test_what_the_engine_cannot_shift_is_refused_by_name(self, url):
        engine = FakeEngine(msgspec.structs.replace(INFO, shiftable=False, attention="flash"))
        world = await World.start(url, engine, policy=EXACT)
        session, _ = await chat(world, "one")
        for work in (
            world.begin(ask("two", conversation=session, policy=SHIFTED)),
            world.service.settings.set_policy(ANN, session, SHIFTED),
        ):
            with pytest.raises(
                RequestError, match=r"must be 'exact'.*flash.*got 'shifted'"
            ) as error:
                await work
            assert error.value.code == "invalid_value"
        await world.stop()


async def test_what_is_not_given_stays_as_it_is(world):
    session, _ = await chat(world, "one")
    await world.service.settings.update(ANN, session, policy=EXACT, retention="hold", ttl_s=9.0)
    view = await world.service.settings.update(ANN, session, policy=UNSET, priority="low")
    assert (view.policy, view.retention, view.priority) == ("scripted", "hold", "low")
    record = await world.store.find_session("ann", session)
    assert record.hints.ttl_s == 9.0
