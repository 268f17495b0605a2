"""Where a turn belongs: continue, queue in the lane, fork, refuse."""

import asyncio

import pytest

from engine.ipc.messages import ForkContext
from sessiond.domain import AttachmentId
from sessiond.errors import RequestError
from tests.harness.service import ANN, SOCKET, World, ask, entries, finish, rendered, settled, until

OTHER = AttachmentId("sock_2")


async def opened(world, text="hi"):
    turn, _ = await world.turn(ask(text))
    return turn.accepted.session_id, turn.accepted.response_id


async def test_the_tip_of_an_idle_session_is_continued(world):
    session, tip = await opened(world)
    turn, _ = await world.turn(ask("a", previous_response_id=tip))
    assert turn.accepted.session_id == session
    assert turn.accepted.previous_response_id == tip


async def test_an_older_response_forks_and_both_go_their_way(world, engine):
    session, first = await opened(world)
    at_first = await world.context(session)
    await world.turn(ask("a", previous_response_id=first))
    trunk = await world.context(session)
    turn, finished = await world.turn(ask("b", previous_response_id=first))
    fork = turn.accepted.session_id
    assert fork != session
    assert engine.sent(ForkContext) == [
        ForkContext(session=fork, parent=session, length=len(at_first))
    ]
    assert await world.context(session) == trunk == engine.contexts[session]
    assert await world.context(fork) == engine.contexts[fork]
    assert engine.contexts[fork] == at_first + rendered(("user", "b"), ("assistant", finished.text))
    assert finished.usage.reused_tokens == len(at_first)


async def test_the_tip_of_a_busy_session_forks(world, engine):
    session, tip = await opened(world)
    engine.auto = False
    running = await world.begin(ask("a", previous_response_id=tip))
    fork = await world.begin(ask("b", previous_response_id=tip))
    assert running.accepted.session_id == session != fork.accepted.session_id
    for turn in (running, fork):
        engine.begin(turn.accepted.response_id)
        engine.finish(turn.accepted.response_id)
        assert (await finish(turn)).status == "completed"


async def test_a_fork_of_a_fork_reaches_back_to_the_first_session(world, engine):
    session, first = await opened(world)
    await world.turn(ask("a", conversation=session))
    turn, _ = await world.turn(ask("b", previous_response_id=first))
    second = turn.accepted.response_id
    await world.turn(ask("c", conversation=turn.accepted.session_id))
    turn, _ = await world.turn(ask("d", previous_response_id=second))
    third = turn.accepted.session_id
    context = await world.context(third)
    assert context == engine.contexts[third]
    assert bytes(i for i in context if i < 128).startswith(b"be good\nhi\n")
    turn, _ = await world.turn(ask("e", previous_response_id=first))
    assert len(engine.sent(ForkContext)) == 3


async def test_a_fork_with_other_instructions_gets_its_own_front(world, engine):
    session, first = await opened(world)
    await world.turn(ask("a", conversation=session))
    turn = await world.begin(ask("b", previous_response_id=first, instructions="new"))
    told = await entries(turn)
    assert told[0].reason == "instructions"
    assert engine.sent(ForkContext) == []
    context = await world.context(turn.accepted.session_id)
    assert context == engine.contexts[turn.accepted.session_id]
    assert context[: len(rendered(("system", "new")))] == rendered(("system", "new"))


async def test_a_fork_from_before_a_reset_is_not_cut_from_the_new_context(world, engine):
    session, first = await opened(world)
    await world.service.conversations.reset(ANN, session)
    await world.turn(ask("much longer than the first turn was" * 3, conversation=session))
    turn, _ = await world.turn(ask("b", previous_response_id=first))
    assert engine.sent(ForkContext) == []
    context = await world.context(turn.accepted.session_id)
    assert context == engine.contexts[turn.accepted.session_id]
    assert b"hi\n" in bytes(i for i in context if i < 128)


async def test_a_fork_of_which_the_parent_is_not_in_the_engine_is_set_from_sql(world, engine):
    session, first = await opened(world)
    await world.turn(ask("a", conversation=session))
    engine.lose()
    turn, _ = await world.turn(ask("b", previous_response_id=first))
    assert engine.sent(ForkContext) == []
    fork = turn.accepted.session_id
    assert await world.context(fork) == engine.contexts[fork]


async def test_t18_two_turns_at_once_on_one_session_conflict(world, engine):
    session, _ = await opened(world)
    engine.auto = False
    turn = await world.begin(ask("a", conversation=session))
    world.service.housekeeping.attach(OTHER)
    elsewhere = [
        {"attachment": None},
        {"attachment": OTHER},
        {"attachment": SOCKET, "lane": "b"},
    ]
    for where in elsewhere:
        with pytest.raises(RequestError) as error:
            await world.bind(ask("b", conversation=session), **where)
        assert (error.value.code, error.value.status) == ("turn_in_progress", 409)
    engine.begin(turn.accepted.response_id)
    engine.finish(turn.accepted.response_id)
    await finish(turn)
    engine.auto = True
    await world.turn(ask("b", conversation=session), attachment=None)


async def test_turns_of_one_lane_queue_first_in_first_out(world, engine):
    session, _ = await opened(world)
    engine.auto = False
    bound = [
        await world.bind(ask(text, conversation=session), lane="x") for text in ("a", "b", "c")
    ]
    runs = [asyncio.create_task(world.service.turns.run(each)) for each in reversed(bound)]
    for each in bound:
        await until(lambda each=each: each.response_id in engine.turns)
        assert engine.running() == [each.response_id]
        engine.begin(each.response_id)
        engine.say(each.response_id)
        engine.finish(each.response_id)
    turns = await asyncio.gather(*runs)
    for turn in turns:
        await finish(turn)
    text = bytes(i for i in await world.context(session) if i < 128).decode()
    assert text.index("\na\n") < text.index("\nb\n") < text.index("\nc\n")


async def test_a_place_in_the_lane_that_is_dropped_holds_up_nobody(world, engine):
    session, _ = await opened(world)
    engine.auto = False
    first = await world.begin(ask("a", conversation=session))
    second, third = [await world.bind(ask(text, conversation=session)) for text in ("b", "c")]
    waiting = asyncio.create_task(world.service.turns.run(second))
    await asyncio.sleep(0)
    waiting.cancel()
    await settled(waiting)
    engine.begin(first.accepted.response_id)
    engine.finish(first.accepted.response_id)
    engine.auto = True
    assert (await finish(await world.service.turns.run(third))).status == "completed"
    await world.service.turns.drop(third)  # ended: nothing happens
    assert second.response_id not in engine.turns


async def test_a_place_that_is_dropped_leaves_the_session_free(world):
    session, tip = await opened(world)
    bound = await world.bind(ask("a", previous_response_id=tip))
    await world.service.turns.drop(bound)
    await world.service.turns.drop(bound)
    turn, _ = await world.turn(ask("b", previous_response_id=tip))
    assert turn.accepted.session_id == session


async def test_as_many_turns_as_allowed_may_be_outstanding(url, engine):
    world = await World.start(url, engine, max_outstanding=2)
    engine.auto = False
    turn = await world.begin(ask("a"))
    await world.bind(ask("b"))
    with pytest.raises(RequestError) as error:
        await world.bind(ask("c"))
    assert (error.value.code, error.value.status) == ("queue_full", 429)
    assert 1 <= error.value.retry_after_s <= 60
    turn.cancel(keep=False)
    await finish(turn)
    await world.bind(ask("c"))
    await world.stop()


async def test_turns_that_are_bound_at_once_do_not_exceed_the_limit(url, engine):
    world = await World.start(url, engine, max_outstanding=1)
    ids = [(await world.turn(ask(text)))[0].accepted.response_id for text in "ab"]
    places = await settled(*[world.bind(ask("c", previous_response_id=each)) for each in ids])
    [refused] = [place for place in places if isinstance(place, RequestError)]
    assert refused.code == "queue_full"
    [bound] = [place for place in places if place is not refused]
    assert (await finish(await world.service.turns.run(bound))).status == "completed"
    for each in ids:
        _, finished = await world.turn(ask("d", previous_response_id=each))
        assert finished.status == "completed", "the refused one holds no place"
    await world.stop()


async def test_a_response_that_was_deleted_is_no_checkpoint_but_stays_in_contexts(world):
    session, first = await opened(world)
    await world.turn(ask("a", conversation=session))
    before = await world.context(session)
    await world.service.followers.forget(ANN, first)
    for look in (
        world.bind(ask("b", previous_response_id=first)),
        world.service.inspector.response(ANN, first),
        world.service.followers.forget(ANN, first),
    ):
        with pytest.raises(RequestError) as error:
            await look
        assert error.value.code == "previous_response_not_found"
    assert await world.context(session) == before
    await world.turn(ask("c", conversation=session))


async def test_responses_of_a_closed_session_are_not_found_but_its_forks_live_on(world):
    session, first = await opened(world)
    await world.turn(ask("a", conversation=session))
    fork, _ = await world.turn(ask("b", previous_response_id=first))
    await world.service.conversations.close(ANN, session)
    with pytest.raises(RequestError) as error:
        await world.bind(ask("c", previous_response_id=first))
    assert error.value.code == "previous_response_not_found"
    await world.turn(ask("c", conversation=fork.accepted.session_id))
