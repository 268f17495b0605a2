"""Which policy decides what the model sees, how that is placed, what the client is told."""

import msgspec
import pytest

from engine.messages import Edit, EditContext, ForkContext, SetContext
from policies.plan import KeepTurns, Summarize
from sessiond.errors import RequestError
from sessiond.facts import (
    UNSET,
    ContextChanged,
    PolicyChoice,
    TurnBegun,
    TurnFinished,
    TurnUsage,
)
from sessiond.sessions.summaries import Summary
from sessiond.store.records import NewSummary
from sessiond.store.shape import SummaryRef
from tests.link.loops import INFO
from tests.sessions.fake_engine import FakeEngine
from tests.sessions.world import (
    ANN,
    BOB,
    DEFAULT,
    World,
    ask,
    facts,
    finish,
    message,
    rendered,
    until,
)

EXACT = PolicyChoice(type="scripted")
SHIFTED = PolicyChoice(type="scripted", fidelity="shifted")
FRONT = message("system", DEFAULT)


async def chat(world, *texts, **fields):
    """Turns of one session; returns it and what each turn added to its context."""
    session, added = None, []
    for text in texts:
        turn, finished = await world.turn(ask(text, conversation=session, **fields))
        session = turn.accepted.session_id
        added.append(rendered(("user", text), ("assistant", finished.text)))
    return session, added


def keep(world, *turns, **fields):
    world.policies.scripted.plans.append(KeepTurns(turns=turns, **fields))


def changes(told):
    return [fact for fact in told if isinstance(fact, ContextChanged)]


class TestEdits:
    @pytest.fixture
    async def world(self, url, engine):
        world = await World.start(url, engine, policy=EXACT)
        yield world
        await world.stop()

    async def test_a_policy_sees_whole_turns_and_what_the_next_one_needs(self, world):
        _session, added = await chat(world, "one", "two", "three", max_output_tokens=9)
        view = world.policies.scripted.views[-1]
        assert view.system_tokens == len(FRONT)
        assert list(view.turns) == [len(ids) for ids in added[:2]]
        assert view.prompt_tokens == len(rendered(("user", "three"))) + 1
        assert view.output_tokens == 9 + 2
        assert view.limit_tokens == 1024

    async def test_an_exact_edit_sets_what_is_kept_and_tells(self, world, engine):
        session, added = await chat(world, "one", "two", "three")
        keep(world, 2)
        turn = await world.begin(ask("four", conversation=session))
        told = await facts(turn)
        before, after = sum(map(len, [FRONT, *added])), len(FRONT + added[2])
        assert changes(told) == [
            ContextChanged(
                session_id=session,
                reason="trimmed",
                dropped_turns=2,
                tokens_before=before,
                tokens_after=after,
                context="trimmed",
                fidelity="exact",
            )
        ]
        assert engine.sent(SetContext)[-1].ids == FRONT + added[2]
        last = rendered(("user", "four"), ("assistant", told[-1].text))
        assert await world.context(session) == FRONT + added[2] + last == engine.contexts[session]
        assert engine.sent(EditContext) == []
        usage = told[-1].usage
        assert (usage.context, usage.fidelity) == ("trimmed", "exact")
        assert usage.input_tokens == after + len(rendered(("user", "four"))) + 1

    async def test_the_next_turn_goes_on_from_there_and_still_says_so(self, world, engine):
        session, _ = await chat(world, "one", "two")
        keep(world, 1)
        await world.turn(ask("three", conversation=session))
        sets = len(engine.sent(SetContext))
        told = await facts(await world.begin(ask("four", conversation=session)))
        assert changes(told) == []
        assert told[-1].usage.context == "trimmed"
        assert len(engine.sent(SetContext)) == sets
        assert len(world.policies.scripted.views[-1].turns) == 2

    async def test_a_plan_that_keeps_all_changes_nothing(self, world, engine):
        session, _ = await chat(world, "one", "two")
        keep(world, 0, 1)
        told = await facts(await world.begin(ask("three", conversation=session)))
        assert changes(told) == []
        assert len(engine.sent(SetContext)) == 1

    async def test_what_changes_is_told_after_the_turn_was_accepted_and_before_it_begins(
        self, world
    ):
        session, _ = await chat(world, "one", "two")
        keep(world)
        told = await facts(await world.begin(ask("three", conversation=session)))
        kinds = [type(fact) for fact in told]
        assert kinds.index(ContextChanged) < kinds.index(TurnBegun)

    async def test_a_shifted_edit_drops_spans_and_keeps_the_kv(self, world, engine):
        session, added = await chat(world, "one", "two", "three")
        keep(world, 0, 2)
        turn = await world.begin(ask("four", conversation=session, policy=SHIFTED))
        told = await facts(turn)
        start = len(FRONT + added[0])
        edit = Edit(at=sum(map(len, [FRONT, *added])), dropped=((start, start + len(added[1])),))
        assert engine.sent(EditContext) == [EditContext(session=session, edit=edit)]
        assert len(engine.sent(SetContext)) == 1
        assert (changes(told)[0].fidelity, told[-1].usage.fidelity) == ("shifted", "shifted")
        last = rendered(("user", "four"), ("assistant", told[-1].text))
        context = FRONT + added[0] + added[2] + last
        assert await world.context(session) == context == engine.contexts[session]

    async def test_a_lost_shifted_context_is_set_with_its_edits(self, world, engine):
        session, added = await chat(world, "one", "two", "three", policy=SHIFTED)
        keep(world, 0, 2)
        await world.turn(ask("four", conversation=session, policy=SHIFTED))
        keep(world, 1, 2)
        await world.turn(ask("five", conversation=session, policy=SHIFTED))
        before, edits = await world.context(session), engine.edits[session]
        engine.lose()
        await world.turn(ask("six", conversation=session, policy=SHIFTED))
        (again,) = engine.sent(SetContext)[1:]
        assert again.ids[: len(FRONT + added[0])] == FRONT + added[0]
        assert again.edits == tuple(edits)
        assert len(edits) == 2
        assert engine.contexts[session][: len(before)] == before

    async def test_an_edit_on_a_context_that_is_gone_is_set_with_it(self, world, engine):
        session, added = await chat(world, "one", "two")
        engine.lose()
        keep(world, 1)
        await world.turn(ask("three", conversation=session, policy=SHIFTED))
        assert engine.sent(EditContext) == []
        sent = engine.sent(SetContext)[-1]
        assert sent.ids == [*FRONT, *added[0], *added[1]]
        assert [edit.dropped for edit in sent.edits] == [((len(FRONT), len(FRONT + added[0])),)]

    async def test_a_policy_that_is_exact_again_rebuilds_what_was_shifted(self, world, engine):
        session, _added = await chat(world, "one", "two")
        keep(world, 1)
        await world.turn(ask("three", conversation=session, policy=SHIFTED))
        before = await world.context(session)
        told = await facts(await world.begin(ask("four", conversation=session)))
        (change,) = changes(told)
        assert (change.reason, change.dropped_turns, change.fidelity) == ("policy", 0, "exact")
        assert change.tokens_before == change.tokens_after == len(before)
        assert (engine.sent(SetContext)[-1].ids, engine.edits[session]) == (before, [])

    async def test_other_instructions_rebuild_what_was_shifted(self, world, engine):
        session, _added = await chat(world, "one", "two", policy=SHIFTED)
        keep(world, 1)
        await world.turn(ask("three", conversation=session, policy=SHIFTED))
        before = await world.context(session)
        request = ask("four", conversation=session, policy=SHIFTED, instructions="be brief")
        told = await facts(await world.begin(request))
        (change,) = changes(told)
        assert (change.reason, change.context, change.fidelity) == (
            "instructions",
            "trimmed",
            "exact",
        )
        seen = message("system", "be brief") + before[len(FRONT) :]
        assert (engine.sent(SetContext)[-1].ids, engine.edits[session]) == (seen, [])
        assert (await world.context(session))[: len(seen)] == seen

    async def test_instructions_and_a_trim_at_once_are_told_apart(self, world, engine):
        session, added = await chat(world, "one", "two")
        keep(world, 1)
        request = ask("three", conversation=session, policy=SHIFTED, instructions="be brief")
        told = changes(await facts(await world.begin(request)))
        assert [change.reason for change in told] == ["instructions", "trimmed"]
        assert told[0].tokens_after == told[1].tokens_before
        assert told[1].tokens_after == len(message("system", "be brief") + added[1])
        assert engine.edits[session] == []

    async def test_a_rebuilt_context_is_told_and_stored_as_exact(self, world, engine):
        session, _added = await chat(world, "one", "two", policy=SHIFTED)
        keep(world, 1)
        await world.turn(ask("three", conversation=session, policy=SHIFTED))
        before = await world.context(session)
        engine.auto = False
        turn = await world.begin(ask("four", conversation=session, policy=SHIFTED))
        engine.begin(turn.accepted.response_id, rebuilt_exact=True)
        engine.finish(turn.accepted.response_id)
        told = await facts(turn)
        (change,) = changes(told)
        assert (change.reason, change.tokens_before, change.tokens_after, change.fidelity) == (
            "rebuilt_exact",
            len(before),
            len(before),
            "exact",
        )
        assert told[-1].usage.fidelity == "exact"
        engine.lose()
        engine.auto = True
        await world.turn(ask("five", conversation=session, policy=SHIFTED))
        sent = engine.sent(SetContext)[-1]
        assert sent.ids[: len(before)] == before
        assert sent.edits == ()

    async def test_a_rebuilt_context_whose_turn_is_lost_is_set_anew(self, world, engine):
        session, _ = await chat(world, "one", "two", policy=SHIFTED)
        keep(world, 1)
        await world.turn(ask("three", conversation=session, policy=SHIFTED))
        engine.auto = False
        turn = await world.begin(ask("four", conversation=session, policy=SHIFTED))
        engine.begin(turn.accepted.response_id, rebuilt_exact=True)
        engine.fail(turn.accepted.response_id, "internal_error")
        await finish(turn)
        engine.auto = True
        await world.turn(ask("five", conversation=session, policy=SHIFTED))
        assert len(engine.sent(SetContext)[-1].edits) == 1

    @pytest.mark.parametrize("policy", [EXACT, SHIFTED])
    async def test_a_lost_turn_leaves_no_trim_behind(self, world, engine, policy):
        session, _added = await chat(world, "one", "two", "three", policy=policy)
        whole = await world.context(session)
        engine.auto = False
        keep(world, 2)
        turn = await world.begin(ask("lost", conversation=session, policy=policy))
        engine.begin(turn.accepted.response_id)
        engine.fail(turn.accepted.response_id, "internal_error")
        await finish(turn)
        engine.auto = True
        assert await world.context(session) == whole
        _, finished = await world.turn(ask("four", conversation=session, policy=policy))
        assert finished.usage.context == "full"
        assert engine.contexts[session][: len(whole)] == whole
        assert engine.edits[session] == []

    async def test_the_same_trim_again_finds_its_context_there(self, world, engine):
        session, _added = await chat(world, "one", "two", "three")
        engine.auto = False
        keep(world, 2)
        turn = await world.begin(ask("lost", conversation=session))
        turn.cancel(keep=False)
        await finish(turn)
        engine.auto = True
        sets = len(engine.sent(SetContext))
        keep(world, 2)
        await world.turn(ask("four", conversation=session))
        assert len(engine.sent(SetContext)) == sets

    async def test_a_question_that_awaits_its_reply_is_never_dropped(self, world, engine):
        session, added = await chat(world, "one")
        await world.turn(ask("the question", conversation=session, generate=False))
        keep(world)
        _turn, finished = await world.turn(ask(conversation=session))
        assert list(world.policies.scripted.views[-1].turns) == [len(added[0])]
        context = FRONT + rendered(("user", "the question"), ("assistant", finished.text))
        assert await world.context(session) == context
        keep(world, 0)
        await world.turn(ask("more", conversation=session))
        view = world.policies.scripted.views[-1]
        assert list(view.turns) == [len(context) - len(FRONT)]


class TestForks:
    @pytest.fixture
    async def world(self, url, engine):
        world = await World.start(url, engine, policy=EXACT)
        yield world
        await world.stop()

    @pytest.mark.parametrize("policy", [EXACT, SHIFTED])
    async def test_a_fork_from_before_a_trim_sees_the_whole(self, world, engine, policy):
        turn, _ = await world.turn(ask("one", policy=policy))
        session = turn.accepted.session_id
        turn, _ = await world.turn(ask("two", conversation=session, policy=policy))
        whole, tip = await world.context(session), turn.accepted.response_id
        keep(world, 1)
        await world.turn(ask("three", conversation=session, policy=policy))
        turn = await world.begin(ask("fork", previous_response_id=tip, policy=policy))
        told = await facts(turn)
        assert changes(told) == []
        assert told[-1].usage.context == "full"
        assert engine.sent(ForkContext) == []  # what the engine holds is not what the parent saw
        fork = turn.accepted.session_id
        assert engine.contexts[fork][: len(whole)] == whole
        assert await world.context(fork) == engine.contexts[fork]

    @pytest.mark.parametrize("policy", [EXACT, SHIFTED])
    async def test_a_fork_from_after_a_trim_shares_what_is_there(self, world, engine, policy):
        session, _ = await chat(world, "one", "two", policy=policy)
        keep(world, 1)
        turn, _ = await world.turn(ask("three", conversation=session, policy=policy))
        trimmed, tip = await world.context(session), turn.accepted.response_id
        await world.turn(ask("four", conversation=session, policy=policy))
        turn, finished = await world.turn(ask("fork", previous_response_id=tip, policy=policy))
        fork = turn.accepted.session_id
        assert engine.sent(ForkContext) == [
            ForkContext(session=fork, parent=session, length=len(trimmed))
        ]
        assert finished.usage.context == "trimmed"
        assert finished.usage.reused_tokens == len(trimmed)
        view = await world.service.get_session(ANN, fork)
        assert (view.fidelity, view.tokens_kept) == (policy.fidelity, len(engine.contexts[fork]))

    async def test_a_fork_shares_nothing_with_what_was_rebuilt_under_it(self, world, engine):
        session, _ = await chat(world, "one", "two", policy=SHIFTED)
        keep(world, 1)
        turn, _ = await world.turn(ask("three", conversation=session, policy=SHIFTED))
        tip = turn.accepted.response_id
        engine.auto = False
        turn = await world.begin(ask("four", conversation=session, policy=SHIFTED))
        engine.begin(turn.accepted.response_id, rebuilt_exact=True)
        await until(lambda: world.service._parts.sessions.get(session).placement.view)
        fork = await world.begin(ask("fork", previous_response_id=tip, policy=SHIFTED))
        assert engine.sent(ForkContext) == []
        assert len(engine.edits[fork.accepted.session_id]) == 1
        for each in (turn, fork):
            each.cancel(keep=False)
            await finish(each)

    async def test_a_fork_may_be_edited_as_it_is_made(self, world, engine):
        session, _added = await chat(world, "one", "two", policy=SHIFTED)
        turn, _ = await world.turn(ask("three", conversation=session, policy=SHIFTED))
        tip = turn.accepted.response_id
        await world.turn(ask("four", conversation=session, policy=SHIFTED))
        trunk = engine.contexts[session]
        keep(world, 2)
        turn, _ = await world.turn(ask("fork", previous_response_id=tip, policy=SHIFTED))
        fork = turn.accepted.session_id
        assert [command.session for command in engine.sent(EditContext)] == [fork]
        assert len(engine.sent(ForkContext)) == 1
        assert await world.context(fork) == engine.contexts[fork]
        assert engine.contexts[session] == trunk == await world.context(session)

    async def test_a_fork_has_the_policy_and_the_hints_of_its_session(self, world, engine):
        turn, _ = await world.turn(ask("one"))
        session, tip = turn.accepted.session_id, turn.accepted.response_id
        await world.service.update_session(
            ANN, session, policy=SHIFTED, retention="park", priority="high"
        )
        await world.turn(ask("two", conversation=session))
        turn, _ = await world.turn(ask("fork", previous_response_id=tip))
        view = await world.service.get_session(ANN, turn.accepted.session_id)
        assert (view.policy, view.retention, view.priority) == ("scripted", "park", "high")


class TestPrecedence:
    @pytest.mark.parametrize("truncation", [None, "auto"])
    async def test_request_then_session_then_user_then_server(self, url, engine, truncation):
        world = await World.start(url, engine, policy=PolicyChoice(type="sliding_window"))
        views = world.policies.scripted.views
        session, _ = await chat(world, "one", "two", truncation=truncation)
        assert len(views) == 0  # the server's
        await world.service.set_user_policy(ANN, "ann", EXACT)
        await world.turn(ask("a", conversation=session, truncation=truncation))
        assert len(views) == 1
        window = PolicyChoice(type="sliding_window")
        await world.service.set_policy(ANN, session, window)
        await world.turn(ask("b", conversation=session, truncation=truncation))
        assert len(views) == 1
        await world.turn(ask("c", conversation=session, truncation=truncation, policy=EXACT))
        assert len(views) == 2
        await world.turn(ask("d", conversation=session, truncation=truncation))
        assert len(views) == 2  # a request's policy is that of one turn
        await world.service.set_policy(ANN, session, None)
        await world.turn(ask("e", conversation=session, truncation=truncation))
        assert len(views) == 3
        assert (await world.service.get_session(ANN, session)).policy == "scripted"
        await world.stop()

    async def test_policies_outlive_the_server(self, url, engine):
        world = await World.start(url, engine)
        session, _ = await chat(world, "one", "two")
        await world.service.set_policy(ANN, session, SHIFTED)
        await world.service.set_user_policy(BOB, "bob", EXACT)
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
            await world.service.set_user_policy(ANN, "bob", EXACT)
        assert error.value.code == "permission_denied"

    async def test_a_policy_that_is_not_known_is_refused_everywhere(self, world):
        session, _ = await chat(world, "one")
        bad = PolicyChoice(type="magic")
        for work in (
            world.begin(ask("a", conversation=session, policy=bad)),
            world.service.set_policy(ANN, session, bad),
            world.service.update_session(ANN, session, policy=bad),
            world.service.set_user_policy(ANN, "ann", bad),
        ):
            with pytest.raises(RequestError, match="magic") as error:
                await work
            assert error.value.code == "invalid_value"
        assert (await world.service.get_session(ANN, session)).policy == "none"


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
        seen = len(FRONT + rendered(("user", "x" * 1100))) + 1
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
        with pytest.raises(RequestError, match="max_tokens allows 200"):
            await world.begin(ask("d" * 190, conversation=session, policy=capped))

    async def test_items_may_be_added_beyond_the_window_and_the_next_turn_makes_room(self, world):
        session, _ = await chat(world, "a" * 400, "b" * 250)
        (said,) = ask("c" * 400).input
        await world.service.add_items(ANN, session, (said,))
        before = await world.context(session)
        assert len(before) > 1024
        told = await facts(await world.begin(ask(conversation=session)))
        assert [change.reason for change in changes(told)] == ["trimmed"]
        assert changes(told)[0].tokens_before == len(before)
        with pytest.raises(RequestError) as error:
            await world.service.add_items(ANN, session, tuple(ask("d" * 1100).input))
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
        with pytest.raises(RequestError, match="breaks a law: turn 7 is not one of 2") as error:
            await world.begin(ask("three", conversation=session))
        assert error.value.code == "internal_error"
        assert (await world.context(session), len(engine.commands)) == (before, commands)
        await world.turn(ask("three", conversation=session))

    async def test_a_policy_that_raises_fails_its_turn(self, world):
        session, _ = await chat(world, "one")

        class Broken:
            def plan(self, view):
                raise ZeroDivisionError

        world.policies._policies["scripted"] = Broken()
        with pytest.raises(RequestError, match="the context policy 'scripted' failed") as error:
            await world.begin(ask("two", conversation=session))
        assert error.value.code == "internal_error"

    async def test_what_the_engine_cannot_shift_is_refused_by_name(self, url):
        engine = FakeEngine(msgspec.structs.replace(INFO, shiftable=False, attention="flash"))
        world = await World.start(url, engine, policy=EXACT)
        session, _ = await chat(world, "one")
        for work in (
            world.begin(ask("two", conversation=session, policy=SHIFTED)),
            world.service.set_policy(ANN, session, SHIFTED),
        ):
            with pytest.raises(
                RequestError, match=r"'shifted'.*flash.*allowed is 'exact'"
            ) as error:
                await work
            assert error.value.code == "invalid_value"
        await world.stop()


class TestSummaries:
    class Ready:
        """Has the summary that the test stored."""

        def __init__(self):
            self.summary = None

        async def find(self, live, shape, plan):
            return self.summary

    @pytest.fixture
    def ready(self):
        return self.Ready()

    @pytest.fixture
    async def world(self, url, engine, ready):
        world = await World.start(url, engine, policy=EXACT, summaries=ready)
        yield world
        await world.stop()

    def plan(self, world):
        fallback = KeepTurns(turns=(1,))
        plan = Summarize(keep_last=1, summary_tokens=64, fallback=fallback)
        world.policies.scripted.plans.append(plan)

    async def stored(self, world, session, pair, covered):
        record = await world.store.find_session("ann", session)
        await world.store.add_summary(
            NewSummary(
                id="sum_1",
                user_id="ann",
                session_id=session,
                turn_id=record.tip_id,
                token_ids=tuple(pair),
                text="short",
                usage=TurnUsage(),
                created_at=1.0,
            )
        )
        return Summary(ref=SummaryRef(id="sum_1", tokens=len(pair)), covered=covered)

    @pytest.mark.parametrize("policy", [EXACT, SHIFTED])
    async def test_a_summary_stands_behind_the_front_and_the_tail_survives(
        self, world, engine, ready, policy
    ):
        session, added = await chat(world, "one", "two")
        pair = rendered(("user", "so far?"), ("assistant", "short"))
        ready.summary = await self.stored(world, session, pair, len(added[0]))
        self.plan(world)
        told = await facts(await world.begin(ask("three", conversation=session, policy=policy)))
        (change,) = changes(told)
        assert (change.reason, change.context, change.fidelity, change.dropped_turns) == (
            "summarized",
            "summarized",
            "exact",
            1,
        )
        usage = told[-1].usage
        assert (usage.summary_tokens, usage.context) == (len(pair), "summarized")
        start = FRONT + pair + added[1]
        assert engine.contexts[session][: len(start)] == start
        for text in ("four", "five", "six"):
            _turn, finished = await world.turn(ask(text, conversation=session, policy=policy))
            assert engine.contexts[session][: len(start)] == start
            assert finished.usage.summary_tokens == len(pair)
        engine.lose()
        await world.turn(ask("seven", conversation=session, policy=policy))
        assert engine.contexts[session][: len(start)] == start
        assert await world.context(session) == engine.contexts[session]

    async def test_a_summary_may_be_dropped_like_a_turn(self, world, engine, ready):
        session, added = await chat(world, "one", "two")
        pair = rendered(("user", "so far?"), ("assistant", "short"))
        ready.summary = await self.stored(world, session, pair, len(added[0]))
        self.plan(world)
        await world.turn(ask("three", conversation=session, policy=SHIFTED))
        keep(world, 1, summary=False)
        _turn, finished = await world.turn(ask("four", conversation=session, policy=SHIFTED))
        (edit,) = engine.edits[session]
        start = len(FRONT)
        assert edit.dropped == ((start, start + len(pair) + len(added[1])),)
        assert (finished.usage.context, finished.usage.summary_tokens) == ("trimmed", 0)
        assert await world.context(session) == engine.contexts[session]

    @pytest.mark.parametrize("too_long", [False, True])
    async def test_without_a_summary_that_fits_the_fallback_is_done_and_told(
        self, world, engine, ready, too_long
    ):
        session, added = await chat(world, "one", "two")
        if too_long:
            ready.summary = await self.stored(world, session, [9] * 65, len(added[0]))
        self.plan(world)
        told = await facts(await world.begin(ask("three", conversation=session)))
        (change,) = changes(told)
        assert (change.reason, change.context) == ("summary_failed", "trimmed")
        assert engine.contexts[session][: len(FRONT + added[1])] == FRONT + added[1]


class TestInspection:
    @pytest.fixture
    async def world(self, url, engine):
        world = await World.start(url, engine, policy=SHIFTED)
        yield world
        await world.stop()

    async def test_a_session_shows_what_the_model_sees(self, world, engine):
        session, added = await chat(world, "one", "two", "three")
        keep(world, 0, 2)
        turn, finished = await world.turn(ask("four", conversation=session))
        view = await world.service.get_session(ANN, session)
        last = rendered(("user", "four"), ("assistant", finished.text))
        assert (view.policy, view.fidelity) == ("scripted", "shifted")
        assert view.tokens_total == sum(map(len, [FRONT, *added, last]))
        assert view.tokens_kept == view.tokens_total - len(added[1])
        assert sum(part.kept for part in view.turns) == view.tokens_kept
        assert [bool(part.kept) for part in view.turns] == [
            True,
            *(True, True),
            *(False, False),
            *(True, True),
            *(True, True),
        ]
        starts = [part.start for part in view.turns]
        assert starts == sorted(starts)
        stored = await world.service.get_response(ANN, turn.accepted.response_id)
        assert stored.finished == finished
        assert isinstance(stored.finished, TurnFinished)

    async def test_a_reset_makes_it_exact_and_whole(self, world, engine):
        session, _ = await chat(world, "one", "two")
        keep(world)
        await world.turn(ask("three", conversation=session))
        view = await world.service.reset_session(ANN, session)
        assert (view.fidelity, view.tokens_total) == ("exact", view.tokens_kept)
        _, finished = await world.turn(ask("four", conversation=session))
        assert (finished.usage.context, finished.usage.fidelity) == ("full", "exact")


async def test_what_is_not_given_stays_as_it_is(world):
    session, _ = await chat(world, "one")
    await world.service.update_session(ANN, session, policy=EXACT, retention="hold", ttl_s=9.0)
    view = await world.service.update_session(ANN, session, policy=UNSET, priority="low")
    assert (view.policy, view.retention, view.priority) == ("scripted", "hold", "low")
    record = await world.store.find_session("ann", session)
    assert record.hints.ttl_s == 9.0
