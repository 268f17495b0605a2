"""Forks of contexts from which turns were dropped, and contexts with a summary."""

import pytest

from engine.ipc.messages import Edit, EditContext, ForkContext, SetContext
from policies.plan import KeepTurns, Summarize
from sessiond.domain import TurnUsage
from sessiond.store.records import NewSummary
from tests.harness.service import (
    ANN,
    World,
    ask,
    entries,
    finish,
    rendered,
    until,
)
from tests.sessions.trimmed import EXACT, PREFIX, SHIFTED, changes, chat, keep


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
        told = await entries(turn)
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
        view = await world.service.inspector.session(ANN, fork)
        assert (view.fidelity, view.tokens_kept) == (policy.fidelity, len(engine.contexts[fork]))

    @pytest.mark.parametrize("running", [False, True])
    async def test_a_fork_shares_an_edited_context_that_is_shorter_than_before_the_edit(
        self, world, engine, running
    ):
        """The place of an edit is one in the ids before it: it says nothing of those after it."""
        session, added = await chat(world, "bb", policy=SHIFTED)
        keep(world)
        turn, _ = await world.turn(ask("a", conversation=session, policy=SHIFTED))
        trimmed, tip = await world.context(session), turn.accepted.response_id
        (edit,) = engine.edits[session]
        assert edit == Edit(at=len(PREFIX + added[0]), dropped=((len(PREFIX), edit.at),))
        assert len(PREFIX) < len(trimmed) < edit.at
        engine.by_hand = lambda command: running and command.session == session
        trunk = await world.begin(ask("more", conversation=session, policy=SHIFTED))
        if not running:
            await finish(trunk)
        turn, finished = await world.turn(ask("fork", previous_response_id=tip, policy=SHIFTED))
        fork = turn.accepted.session_id
        assert engine.sent(ForkContext) == [
            ForkContext(session=fork, parent=session, length=len(trimmed))
        ]
        assert len(engine.sent(SetContext)) == 1
        assert finished.usage.reused_tokens == len(trimmed)
        assert engine.edits[fork] == [edit]
        assert await world.context(fork) == engine.contexts[fork]
        if running:
            trunk.cancel(keep=False)
            await finish(trunk)

    async def test_a_fork_shares_nothing_with_what_was_rebuilt_under_it(self, world, engine):
        session, _ = await chat(world, "one", "two", policy=SHIFTED)
        keep(world, 1)
        turn, _ = await world.turn(ask("three", conversation=session, policy=SHIFTED))
        tip = turn.accepted.response_id
        engine.auto = False
        turn = await world.begin(ask("four", conversation=session, policy=SHIFTED))
        engine.begin(turn.accepted.response_id, rebuilt_exact=True)
        await until(lambda: world.service.live.get(session).residency.view)
        fork = await world.begin(ask("fork", previous_response_id=tip, policy=SHIFTED))
        assert engine.sent(ForkContext) == []
        assert len(engine.edits[fork.accepted.session_id]) == 1
        for each in (turn, fork):
            each.cancel(keep=False)
            await finish(each)

    @pytest.mark.parametrize("policy", [EXACT, SHIFTED])
    async def test_a_fork_shares_nothing_with_what_a_lost_turn_dropped(self, world, engine, policy):
        turn, _ = await world.turn(ask("a", policy=policy))
        session, tip = turn.accepted.session_id, turn.accepted.response_id
        seen = await world.context(session)
        await world.turn(ask("longer", conversation=session, policy=policy))
        engine.auto = False
        keep(world, 1)
        lost = await world.begin(ask("lost", conversation=session, policy=policy))
        lost.cancel(keep=False)
        await finish(lost)
        assert len(engine.contexts[session]) > len(seen)
        fork = await world.begin(ask("fork", previous_response_id=tip, policy=policy))
        assert engine.sent(ForkContext) == []
        assert engine.contexts[fork.accepted.session_id] == seen
        fork.cancel(keep=False)
        await finish(fork)

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
        await world.service.settings.update(
            ANN, session, policy=SHIFTED, retention="park", priority="high"
        )
        await world.turn(ask("two", conversation=session))
        turn, _ = await world.turn(ask("fork", previous_response_id=tip))
        view = await world.service.inspector.session(ANN, turn.accepted.session_id)
        assert (view.policy, view.retention, view.priority) == ("scripted", "park", "high")


class TestSummaries:
    @pytest.fixture
    async def world(self, url, engine):
        world = await World.start(url, engine, policy=EXACT)
        yield world
        await world.stop()

    def plan(self, world, tokens=64):
        fallback = KeepTurns(turns=(1,))
        plan = Summarize(keep_last=1, summary_tokens=tokens, fallback=fallback)
        world.policies.scripted.plans.append(plan)

    async def stored(self, world, session, pair):
        """A summary that nobody waits for, as if it had been written after the last turn."""
        record = await world.store.find_session("ann", session)
        await world.store.add_summary(
            NewSummary(
                id="sum_1",
                user_id="ann",
                session_id=session,
                turn_id=record.tip_id,
                token_ids=tuple(pair),
                text="short",
                usage=TurnUsage(new_tokens=30, reused_tokens=100, output_tokens=5),
                created_at=1.0,
            )
        )

    @pytest.mark.parametrize("policy", [EXACT, SHIFTED])
    async def test_a_summary_stands_behind_the_front_and_the_tail_survives(
        self, world, engine, policy
    ):
        session, added = await chat(world, "one", "two")
        pair = rendered(("user", "so far?"), ("assistant", "short"))
        await self.stored(world, session, pair)
        self.plan(world)
        told = await entries(await world.begin(ask("three", conversation=session, policy=policy)))
        (change,) = changes(told)
        assert (change.reason, change.context, change.fidelity, change.dropped_turns) == (
            "summarized",
            "summarized",
            "exact",
            1,
        )
        usage = told[-1].usage
        assert (usage.summary_tokens, usage.context) == (len(pair), "summarized")
        start = PREFIX + pair + added[1]
        assert engine.contexts[session][: len(start)] == start
        for text in ("four", "five", "six"):
            _turn, finished = await world.turn(ask(text, conversation=session, policy=policy))
            assert engine.contexts[session][: len(start)] == start
            assert finished.usage.summary_tokens == len(pair)
        engine.lose()
        await world.turn(ask("seven", conversation=session, policy=policy))
        assert engine.contexts[session][: len(start)] == start
        assert await world.context(session) == engine.contexts[session]

    async def test_a_summary_may_be_dropped_like_a_turn(self, world, engine):
        session, added = await chat(world, "one", "two")
        pair = rendered(("user", "so far?"), ("assistant", "short"))
        await self.stored(world, session, pair)
        self.plan(world)
        await world.turn(ask("three", conversation=session, policy=SHIFTED))
        keep(world, 1, summary=False)
        _turn, finished = await world.turn(ask("four", conversation=session, policy=SHIFTED))
        (edit,) = engine.edits[session]
        start = len(PREFIX)
        assert edit.dropped == ((start, start + len(pair) + len(added[1])),)
        assert (finished.usage.context, finished.usage.summary_tokens) == ("trimmed", 0)
        assert await world.context(session) == engine.contexts[session]

    @pytest.mark.parametrize("too_long", [False, True])
    async def test_without_a_summary_that_fits_the_fallback_is_done_and_told(
        self, world, engine, too_long
    ):
        """One of 40 tokens can't be written here: the messages around it are longer."""
        session, added = await chat(world, "one", "two")
        if too_long:
            await self.stored(world, session, [9] * 41)
        self.plan(world, tokens=40)
        told = await entries(await world.begin(ask("three", conversation=session)))
        (change,) = changes(told)
        assert (change.reason, change.context) == ("summary_failed", "trimmed")
        assert engine.contexts[session][: len(PREFIX + added[1])] == PREFIX + added[1]

    async def test_what_its_making_took_counts_in_the_sessions_sums(self, world):
        session, _ = await chat(world, "one")
        before = (await world.service.inspector.session(ANN, session)).usage
        await self.stored(world, session, [9] * 20)
        after = (await world.service.inspector.session(ANN, session)).usage
        assert after.turns == before.turns
        assert after.input_tokens - before.input_tokens == 130
        assert after.cached_tokens - before.cached_tokens == 100
        assert after.output_tokens - before.output_tokens == 5
