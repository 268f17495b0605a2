"""Forks that are asked for, and sessions that go back to an earlier response."""

import asyncio
from contextlib import contextmanager

import pytest

from engine.ipc.messages import CloseContext, ForkContext, SetContext, TruncateContext
from engine.ipc.queries import GetStats
from sessiond.errors import RequestError
from tests.harness.service import ANN, BOB, SOCKET, World, ask, finish, message, settled
from tests.sessions.rig import Rig, StepGate, greedy, reply_after


async def told(world, *texts, session=None):
    """Turns of one conversation; their response ids."""
    ids = []
    for text in texts:
        turn, _ = await world.turn(ask(text, conversation=session))
        session = turn.accepted.session_id
        ids.append(turn.accepted.response_id)
    return session, ids


async def refused(work, code, param=None):
    with pytest.raises(RequestError) as caught:
        await work
    assert caught.value.code == code
    if param:
        assert caught.value.param == param


async def test_a_fork_of_the_last_response_shares_its_context_at_once(world, engine):
    session, ids = await told(world, "a", "b")
    view = await world.service.openings.fork(ANN, session)
    assert view.id != session
    assert view.state == "idle"
    assert await world.context(view.id) == await world.context(session)
    length = view.tokens_kept
    assert engine.sent(ForkContext) == [ForkContext(session=view.id, parent=session, length=length)]
    turn, finished = await world.turn(ask("c", conversation=view.id))
    assert turn.accepted.session_id == view.id
    assert finished.usage.reused_tokens == length
    assert [turn.response_id for turn in view.turns if turn.role == "user"] == ids


async def test_a_fork_of_an_earlier_response_sees_what_it_saw(world, engine):
    session, ids = await told(world, "a")
    at_first = await world.context(session)
    await told(world, "b", session=session)
    view = await world.service.openings.fork(ANN, session, ids[0])
    assert await world.context(view.id) == at_first == engine.contexts[view.id]


async def test_a_fork_of_a_cold_parent_is_brought_by_its_first_turn(world, engine):
    session, _ = await told(world, "a")
    engine.lose()
    view = await world.service.openings.fork(ANN, session)
    assert view.state == "cold"
    _, finished = await world.turn(ask("b", conversation=view.id))
    assert finished.status == "completed"
    assert await world.context(view.id) == engine.contexts[view.id]


async def test_a_fork_of_a_session_without_turns_has_its_instructions(world):
    created = await world.service.openings.create(ANN, (), {})
    view = await world.service.openings.fork(ANN, created.id)
    assert (view.state, view.turns) == ("new", ())
    _, finished = await world.turn(ask("a", conversation=view.id))
    assert finished.status == "completed"


async def test_a_fork_may_be_cut_at_a_response_that_its_parent_inherited(world):
    session, ids = await told(world, "a", "b")
    child = await world.service.openings.fork(ANN, session)
    grandchild = await world.service.openings.fork(ANN, child.id, ids[0])
    assert [turn.response_id for turn in grandchild.turns if turn.role == "user"] == ids[:1]


async def test_a_fork_keeps_policy_and_hints_of_its_parent(world):
    session, _ = await told(world, "a")
    await world.service.settings.update(ANN, session, retention="hold", ttl_s=7.0, priority="low")
    view = await world.service.openings.fork(ANN, session)
    assert (view.retention, view.priority) == ("hold", "low")


async def test_foreign_and_unknown_things_are_not_forked(world):
    session, ids = await told(world, "a")
    other, others = await told(world, "x")
    await refused(world.service.openings.fork(BOB, session), "conversation_not_found")
    await refused(world.service.openings.fork(ANN, "conv_none"), "conversation_not_found")
    for response in ("resp_none", others[0]):
        await refused(
            world.service.openings.fork(ANN, session, response),
            "previous_response_not_found",
            "response_id",
        )
    await world.service.conversations.close(ANN, session)
    await refused(world.service.openings.fork(ANN, session, ids[0]), "conversation_not_found")
    assert len((await world.service.inspector.page(ANN, 10, None)).sessions) == 1
    assert other


async def test_a_rewound_session_stands_where_the_response_left_it(world, engine):
    session, ids = await told(world, "a")
    at_first = await world.context(session)
    _, later = await told(world, "b", "c", session=session)
    view = await world.service.conversations.reset(ANN, session, ids[0])
    assert engine.sent(TruncateContext) == [TruncateContext(session=session, length=len(at_first))]
    assert await world.context(session) == at_first == engine.contexts[session]
    assert [turn.response_id for turn in view.turns if turn.role == "user"] == ids
    turn, finished = await world.turn(ask("d", previous_response_id=ids[0]))
    assert turn.accepted.session_id == session
    assert finished.usage.reused_tokens == len(at_first)
    fork, _ = await world.turn(ask("e", previous_response_id=later[1]))
    assert fork.accepted.session_id != session


async def test_rewinding_to_the_last_response_changes_nothing(world, engine):
    session, ids = await told(world, "a")
    before = await world.context(session)
    await world.service.conversations.reset(ANN, session, ids[0])
    assert await world.context(session) == before == engine.contexts[session]


async def test_a_rewind_behind_other_instructions_makes_the_context_anew(world, engine):
    session, ids = await told(world, "a")
    at_first = await world.context(session)
    await world.turn(ask("b", conversation=session, instructions="be brief"))
    view = await world.service.conversations.reset(ANN, session, ids[0])
    assert view.instructions is None
    assert CloseContext(session=session) in engine.commands
    await world.turn(ask("c", conversation=session))
    assert await world.context(session) == engine.contexts[session]
    assert (await world.context(session))[: len(at_first)] == at_first
    assert engine.sent(SetContext)[-1].ids == at_first


async def test_a_session_is_not_rewound_to_what_is_not_in_its_context(world):
    session, ids = await told(world, "a", "b")
    await world.service.conversations.reset(ANN, session, ids[0])
    for response in (ids[1], "resp_none"):
        await refused(
            world.service.conversations.reset(ANN, session, response),
            "previous_response_not_found",
            "response_id",
        )
    await refused(world.service.conversations.reset(BOB, session, ids[0]), "conversation_not_found")


async def test_a_busy_session_is_not_rewound(world, engine):
    session, ids = await told(world, "a")
    engine.auto = False
    turn = await world.begin(ask("b", conversation=session))
    await refused(world.service.conversations.reset(ANN, session, ids[0]), "turn_in_progress")
    engine.finish(turn.accepted.response_id)


@contextmanager
def answered_step_by_step(rig):
    """The engine answers between two steps: each question lets it make one."""
    ask = rig.engine.ask

    async def stepping(query):
        answer = asyncio.create_task(ask(query))
        await asyncio.sleep(0)  # the engine has the question
        rig.model.gate.open(1)
        return await answer

    rig.engine.ask = stepping
    yield
    rig.engine.ask = ask


class TestOnTheRealLoop:
    @pytest.fixture
    async def rig(self):
        return Rig()

    @pytest.fixture
    async def world(self, url, rig):
        await rig.engine.start()
        world = await World.start(url, rig.engine)
        yield world
        await world.service.housekeeping.detach(SOCKET)
        await world.stop()
        await rig.engine.stop()

    async def test_t16_forks_of_a_parent_that_generates_share_its_blocks(self, world, rig):
        """At most a block and the new text is computed; the parent says what it would have."""
        long = "x" * 400
        first, _ = await world.turn(greedy(long))
        session = first.accepted.session_id
        at_first = await world.context(session)
        rig.model.gate = StepGate(1)
        parent = await world.begin(greedy("goes on", conversation=session))
        with answered_step_by_step(rig):
            views = [await world.service.openings.fork(ANN, session) for _ in range(4)]
        assert not parent.ended.is_set()
        rig.model.gate.open()
        told = await finish(parent)
        assert told.text == reply_after([*at_first, *message("user", "goes on"), 259])
        for view in views:
            held = await world.service.inspector.session(ANN, view.id)
            assert held.blocks.shared >= len(at_first) // 16
        turns = await settled(
            *(
                world.turn(greedy(f"fork {number}", conversation=view.id))
                for number, view in enumerate(views)
            )
        )
        for number, (_, finished) in enumerate(turns):
            prompt = [*at_first, *message("user", f"fork {number}"), 259]
            assert finished.text == reply_after(prompt)
            assert finished.usage.cached_tokens >= len(at_first) - 16

    async def test_t13_blocks_of_a_dead_suffix_are_free_at_once(self, world, rig):
        """And those that a fork shares survive."""
        session, responses, lengths = None, [], []
        for number in range(10):
            turn, _ = await world.turn(greedy(f"{number} " * 20, conversation=session))
            session = turn.accepted.session_id
            responses.append(turn.accepted.response_id)
            lengths.append(len(await world.context(session)))
        fork = await world.service.openings.fork(ANN, session, responses[5])
        before = await rig.engine.ask(GetStats())
        await world.service.conversations.reset(ANN, session, responses[3])
        after = await rig.engine.ask(GetStats())
        held = await world.service.inspector.session(ANN, fork.id)
        assert held.blocks.device == -(-lengths[5] // 16)
        gone = before.active_blocks - after.active_blocks
        assert gone >= (lengths[9] - lengths[5]) // 16
        assert after.active_blocks <= -(-lengths[5] // 16) + 1
        await world.turn(greedy("on", conversation=session))
        await world.turn(greedy("on", conversation=fork.id))
