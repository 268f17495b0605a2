"""How what the model sees is placed and stored, and what the client is told."""

import pytest

from engine.ipc.messages import Edit, EditContext, SetContext
from sessiond.domain import ContextChanged, TurnBegun, TurnFinished
from tests.harness.service import (
    ANN,
    World,
    ask,
    entries,
    finish,
    message,
    rendered,
)
from tests.sessions.trimmed import EXACT, PREFIX, SHIFTED, changes, chat, keep


class TestEdits:
    @pytest.fixture
    async def world(self, url, engine):
        world = await World.start(url, engine, policy=EXACT)
        yield world
        await world.stop()

    async def test_a_policy_sees_whole_turns_and_what_the_next_one_needs(self, world):
        _session, added = await chat(world, "one", "two", "three", max_output_tokens=9)
        view = world.policies.scripted.views[-1]
        assert view.system_tokens == len(PREFIX)
        assert list(view.turns) == [len(ids) for ids in added[:2]]
        assert view.prompt_tokens == len(rendered(("user", "three"))) + 1
        assert view.output_tokens == 9 + 2
        assert view.limit_tokens == 1024

    async def test_an_exact_edit_sets_what_is_kept_and_tells(self, world, engine):
        session, added = await chat(world, "one", "two", "three")
        keep(world, 2)
        turn = await world.begin(ask("four", conversation=session))
        told = await entries(turn)
        before, after = sum(map(len, [PREFIX, *added])), len(PREFIX + added[2])
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
        assert engine.sent(SetContext)[-1].ids == PREFIX + added[2]
        last = rendered(("user", "four"), ("assistant", told[-1].text))
        assert await world.context(session) == PREFIX + added[2] + last == engine.contexts[session]
        assert engine.sent(EditContext) == []
        usage = told[-1].usage
        assert (usage.context, usage.fidelity) == ("trimmed", "exact")
        assert usage.input_tokens == after + len(rendered(("user", "four"))) + 1

    async def test_the_next_turn_goes_on_from_there_and_still_says_so(self, world, engine):
        session, _ = await chat(world, "one", "two")
        keep(world, 1)
        await world.turn(ask("three", conversation=session))
        sets = len(engine.sent(SetContext))
        told = await entries(await world.begin(ask("four", conversation=session)))
        assert changes(told) == []
        assert told[-1].usage.context == "trimmed"
        assert len(engine.sent(SetContext)) == sets
        assert len(world.policies.scripted.views[-1].turns) == 2

    async def test_a_plan_that_keeps_all_changes_nothing(self, world, engine):
        session, _ = await chat(world, "one", "two")
        keep(world, 0, 1)
        told = await entries(await world.begin(ask("three", conversation=session)))
        assert changes(told) == []
        assert len(engine.sent(SetContext)) == 1

    async def test_what_changes_is_told_after_the_turn_was_accepted_and_before_it_begins(
        self, world
    ):
        session, _ = await chat(world, "one", "two")
        keep(world)
        told = await entries(await world.begin(ask("three", conversation=session)))
        kinds = [type(entry) for entry in told]
        assert kinds.index(ContextChanged) < kinds.index(TurnBegun)

    async def test_a_shifted_edit_drops_spans_and_keeps_the_kv(self, world, engine):
        session, added = await chat(world, "one", "two", "three")
        keep(world, 0, 2)
        turn = await world.begin(ask("four", conversation=session, policy=SHIFTED))
        told = await entries(turn)
        start = len(PREFIX + added[0])
        edit = Edit(at=sum(map(len, [PREFIX, *added])), dropped=((start, start + len(added[1])),))
        assert engine.sent(EditContext) == [EditContext(session=session, edit=edit)]
        assert len(engine.sent(SetContext)) == 1
        assert (changes(told)[0].fidelity, told[-1].usage.fidelity) == ("shifted", "shifted")
        last = rendered(("user", "four"), ("assistant", told[-1].text))
        context = PREFIX + added[0] + added[2] + last
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
        assert again.ids[: len(PREFIX + added[0])] == PREFIX + added[0]
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
        assert sent.ids == [*PREFIX, *added[0], *added[1]]
        assert [edit.dropped for edit in sent.edits] == [((len(PREFIX), len(PREFIX + added[0])),)]

    async def test_a_policy_that_is_exact_again_rebuilds_what_was_shifted(self, world, engine):
        session, _added = await chat(world, "one", "two")
        keep(world, 1)
        await world.turn(ask("three", conversation=session, policy=SHIFTED))
        before = await world.context(session)
        told = await entries(await world.begin(ask("four", conversation=session)))
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
        told = await entries(await world.begin(request))
        (change,) = changes(told)
        assert (change.reason, change.context, change.fidelity) == (
            "instructions",
            "trimmed",
            "exact",
        )
        seen = message("system", "be brief") + before[len(PREFIX) :]
        assert (engine.sent(SetContext)[-1].ids, engine.edits[session]) == (seen, [])
        assert (await world.context(session))[: len(seen)] == seen

    async def test_instructions_and_a_trim_at_once_are_told_apart(self, world, engine):
        session, added = await chat(world, "one", "two")
        keep(world, 1)
        request = ask("three", conversation=session, policy=SHIFTED, instructions="be brief")
        told = changes(await entries(await world.begin(request)))
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
        told = await entries(turn)
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
        context = PREFIX + rendered(("user", "the question"), ("assistant", finished.text))
        assert await world.context(session) == context
        keep(world, 0)
        await world.turn(ask("more", conversation=session))
        view = world.policies.scripted.views[-1]
        assert list(view.turns) == [len(context) - len(PREFIX)]


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
        view = await world.service.inspector.session(ANN, session)
        last = rendered(("user", "four"), ("assistant", finished.text))
        assert (view.policy, view.fidelity) == ("scripted", "shifted")
        assert view.tokens_total == sum(map(len, [PREFIX, *added, last]))
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
        stored = await world.service.inspector.response(ANN, turn.accepted.response_id)
        assert stored.finished == finished
        assert isinstance(stored.finished, TurnFinished)

    async def test_a_reset_makes_it_exact_and_whole(self, world, engine):
        session, _ = await chat(world, "one", "two")
        keep(world)
        await world.turn(ask("three", conversation=session))
        view = await world.service.conversations.reset(ANN, session)
        assert (view.fidelity, view.tokens_total) == ("exact", view.tokens_kept)
        _, finished = await world.turn(ask("four", conversation=session))
        assert (finished.usage.context, finished.usage.fidelity) == ("full", "exact")
