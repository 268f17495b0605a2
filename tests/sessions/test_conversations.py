"""Conversations and items: changes that no engine works on."""

import pytest

from engine.ipc.messages import CloseContext, SetContext, SubmitTurn
from sessiond.errors import RequestError
from tests.harness.service import ANN, BOB, DEFAULT, ask, finish, items, rendered


@pytest.fixture
async def session(world):
    turn, _ = await world.turn(ask("hi"))
    return turn.accepted.session_id


async def refused(work, code):
    with pytest.raises(RequestError) as error:
        await work
    assert error.value.code == code


async def test_an_empty_conversation_is_continued_by_its_id(world):
    made = await world.service.openings.create(ANN, (), {"topic": "x"})
    assert made.metadata == {"topic": "x"}
    assert await world.service.conversations.get(ANN, made.id) == made
    turn, finished = await world.turn(ask("hi", conversation=made.id, instructions="be brief"))
    assert turn.accepted.session_id == made.id
    assert await world.context(made.id) == rendered(
        ("system", "be brief"), ("user", "hi"), ("assistant", finished.text)
    )


async def test_one_with_items_has_them_in_its_context_and_computes_nothing(world, engine):
    said = items(("system", "be kind"), "hi", ("assistant", "hello"), "and?")
    made = await world.service.openings.create(ANN, said, {})
    assert engine.commands == []
    parts = [("system", "be kind"), ("user", "hi"), ("assistant", "hello"), ("user", "and?")]
    assert await world.context(made.id) == rendered(*parts)
    _, finished = await world.turn(ask(conversation=made.id))
    assert engine.sent(SetContext)[0].ids == rendered(*parts)
    assert engine.sent(SubmitTurn)[0].ids == [259]
    assert await world.context(made.id) == rendered(*parts, ("assistant", finished.text))


async def test_one_with_items_that_do_not_fit_is_not_made(world):
    await refused(
        world.service.openings.create(ANN, items("x" * 2000), {}), "context_length_exceeded"
    )
    assert (await world.service.inspector.page(ANN, 10, None)).sessions == ()


async def test_added_items_follow_the_context(world, session, engine):
    before = await world.context(session)
    views = await world.service.conversations.add_items(
        ANN, session, items(("assistant", "x"), "y")
    )
    assert [(view.role, view.text) for view in views] == [("assistant", "x"), ("user", "y")]
    added = before + rendered(("assistant", "x"), ("user", "y"))
    assert await world.context(session) == added
    await world.turn(ask(conversation=session))
    assert engine.contexts[session][: len(added)] == added


async def test_a_busy_conversation_is_not_changed(world, session, engine):
    engine.auto = False
    turn = await world.begin(ask("a", conversation=session))
    await refused(
        world.service.conversations.add_items(ANN, session, items("x")), "turn_in_progress"
    )
    await refused(world.service.conversations.reset(ANN, session), "turn_in_progress")
    engine.finish(turn.accepted.response_id)
    await finish(turn)
    await world.service.conversations.add_items(ANN, session, items("x"))


async def test_items_are_paged_both_ways(world, session):
    await world.turn(ask("b", "c", conversation=session))
    every = await world.service.conversations.list_items(ANN, session, order="asc", limit=100)
    assert [item.text for item in every.items][0::1][:1] == ["hi"]
    assert [item.role for item in every.items] == ["user", "assistant", "user", "user", "assistant"]
    assert not every.has_more
    for order, expected in (("asc", every.items), ("desc", every.items[::-1])):
        seen, after = [], None
        while True:
            page = await world.service.conversations.list_items(
                ANN, session, order=order, limit=2, after=after
            )
            seen += page.items
            after = page.items[-1].id
            if not page.has_more:
                break
        assert tuple(seen) == expected


async def test_a_fork_lists_the_items_of_its_ancestors(world, session):
    tip = (await world.store.find_session("ann", session)).tip_id
    await world.turn(ask("trunk", conversation=session))
    turn, _ = await world.turn(ask("fork", previous_response_id=tip))
    page = await world.service.conversations.list_items(ANN, turn.accepted.session_id, order="asc")
    assert [item.text for item in page.items if item.role == "user"] == ["hi", "fork"]


async def test_items_of_turns_that_joined_no_context_are_not_listed(world, session, engine):
    engine.auto = False
    turn = await world.begin(ask("lost", conversation=session))
    during = await world.service.conversations.list_items(ANN, session)
    turn.cancel(keep=False)
    await finish(turn)
    after = await world.service.conversations.list_items(ANN, session)
    assert len(during.items) == len(after.items) == 2
    page = await world.service.inspector.input_items(ANN, turn.accepted.response_id)
    assert [item.text for item in page.items] == ["lost"]


async def test_one_item_is_found_by_its_id_and_not_deleted(world, session):
    page = await world.service.conversations.list_items(ANN, session)
    item = page.items[0]
    assert await world.service.conversations.get_item(ANN, session, item.id) == item
    await refused(
        world.service.conversations.delete_item(ANN, session, item.id), "unsupported_parameter"
    )
    await refused(
        world.service.conversations.get_item(ANN, session, "msg_none"), "conversation_not_found"
    )
    other = await world.service.openings.create(ANN, (), {})
    await refused(
        world.service.conversations.get_item(ANN, other.id, item.id), "conversation_not_found"
    )


async def test_metadata_is_replaced(world, session):
    await world.service.conversations.update(ANN, session, {"a": "b"})
    assert (await world.service.conversations.get(ANN, session)).metadata == {"a": "b"}


async def test_a_deleted_conversation_is_gone_from_everything_but_inspection(
    world, session, engine
):
    await world.service.conversations.close(ANN, session)
    assert engine.sent(CloseContext) == [CloseContext(session=session, erase=True)]
    for look in (
        world.service.conversations.get(ANN, session),
        world.service.conversations.update(ANN, session, {}),
        world.service.conversations.list_items(ANN, session),
        world.service.conversations.add_items(ANN, session, items("x")),
        world.service.conversations.close(ANN, session),
        world.service.conversations.reset(ANN, session),
        world.bind(ask("x", conversation=session)),
    ):
        await refused(look, "conversation_not_found")
    assert (await world.service.inspector.session(ANN, session)).state == "closed"


async def test_nothing_of_it_is_there_for_another_user(world, session):
    item = (await world.service.conversations.list_items(ANN, session)).items[0]
    response = item.response_id
    service = world.service
    for look in (
        service.conversations.get(BOB, session),
        service.inspector.session(BOB, session),
        service.conversations.update(BOB, session, {}),
        service.conversations.list_items(BOB, session),
        service.conversations.get_item(BOB, session, item.id),
        service.conversations.add_items(BOB, session, items("x")),
        service.conversations.close(BOB, session),
        service.conversations.close(BOB, session),
        service.conversations.reset(BOB, session),
    ):
        await refused(look, "conversation_not_found")
    for look in (
        service.inspector.response(BOB, response),
        service.inspector.input_items(BOB, response),
        service.followers.forget(BOB, response),
    ):
        await refused(look, "previous_response_not_found")
    assert (await service.inspector.page(BOB, 10, None)).sessions == ()
    assert (await service.inspector.response(ANN, response)).accepted.session_id == session


async def test_reset_keeps_the_instructions_and_nothing_else(world, engine):
    turn, _ = await world.turn(ask(("system", "an item"), "hi", instructions="be brief"))
    session = turn.accepted.session_id
    view = await world.service.conversations.reset(ANN, session)
    assert (view.state, view.turns, view.instructions) == ("new", (), "be brief")
    _, finished = await world.turn(ask("again", conversation=session))
    assert await world.context(session) == rendered(
        ("system", "be brief"), ("user", "again"), ("assistant", finished.text)
    )
    assert engine.contexts[session] == await world.context(session)
    assert DEFAULT.encode() not in bytes(i for i in engine.contexts[session] if i < 256)
