"""A session that is deleted between a request's binding and its first commit: told as not found."""

import logging
from contextlib import contextmanager

import pytest

from sessiond.errors import RequestError
from tests.harness.service import ANN, ask
from tests.sessions.test_ownership import servers

PARAM = "previous_response_id"


@contextmanager
def refused(code, param):
    with pytest.raises(RequestError) as caught:
        yield
    assert (caught.value.code, caught.value.param, caught.value.status) == (code, param, 404)


def closing_before(monkeypatch, world, method, session, closer=None):
    """Have a session deleted right before the store does this."""
    real = getattr(world.store, method)

    async def late(*args, **kwargs):
        monkeypatch.setattr(world.store, method, real)
        await (closer or world).service.conversations.close(ANN, session)
        return await real(*args, **kwargs)

    monkeypatch.setattr(world.store, method, late)


async def told(world, *texts):
    """A conversation's id and those of its responses."""
    session, ids = None, []
    for text in texts:
        turn, _ = await world.turn(ask(text, conversation=session))
        session = turn.accepted.session_id
        ids.append(turn.accepted.response_id)
    return session, ids


@pytest.mark.parametrize("instructions", [None, "others"])
async def test_a_fork_by_response_that_is_bound_before_and_run_after(world, caplog, instructions):
    session, (first, _) = await told(world, "a", "b")
    request = ask("c", previous_response_id=first, instructions=instructions)
    bound = await world.bind(request)
    await world.service.conversations.close(ANN, session)
    with caplog.at_level(logging.WARNING), refused("previous_response_not_found", PARAM):
        await world.service.turns.run(bound)
    assert caplog.messages == []
    assert world.store.failure is None
    _, finished = await world.turn(ask("on"))
    assert finished.status == "completed"


async def test_a_fork_by_response_that_is_planned_before(world, monkeypatch):
    session, (first, _) = await told(world, "a", "b")
    closing_before(monkeypatch, world, "begin_turn", session)
    with refused("previous_response_not_found", PARAM):
        await world.begin(ask("c", previous_response_id=first))


@pytest.mark.parametrize("named", ["conversation", PARAM])
async def test_a_turn_that_is_bound_to_the_session_itself(world, named):
    session, (first,) = await told(world, "a")
    given = {"conversation": session, PARAM: first}[named]
    bound = await world.bind(ask("b", **{named: given}))
    await world.service.conversations.close(ANN, session)
    code = "conversation_not_found" if named == "conversation" else "previous_response_not_found"
    with refused(code, named):
        await world.service.turns.run(bound)


async def test_a_fork_that_is_asked_for(world, monkeypatch):
    for response, code, param in (
        (True, "previous_response_not_found", "response_id"),
        (False, "conversation_not_found", "conversation"),
    ):
        session, (first,) = await told(world, "a")
        closing_before(monkeypatch, world, "create_session", session)
        with refused(code, param):
            await world.service.openings.fork(ANN, session, first if response else None)


async def test_a_fork_of_instructions_alone(world, monkeypatch):
    session = (await world.service.openings.create(ANN, (), {})).id
    closing_before(monkeypatch, world, "create_session", session)
    with refused("conversation_not_found", "conversation"):
        await world.service.openings.fork(ANN, session)


async def test_a_fork_of_what_is_not_stored(world):
    turn, _ = await world.turn(ask("a", store=False))
    await world.turn(ask("b", conversation=turn.accepted.session_id))
    bound = await world.bind(ask("c", previous_response_id=turn.accepted.response_id))
    await world.service.conversations.close(ANN, turn.accepted.session_id)
    with refused("previous_response_not_found", PARAM):
        await world.service.turns.run(bound)


@pytest.mark.parametrize("named", ["conversation", PARAM])
async def test_by_another_server(url, monkeypatch, named):
    code = "conversation_not_found" if named == "conversation" else "previous_response_not_found"
    async with servers(url) as (a, b):
        session, (first,) = await told(a, "a")
        given = {"conversation": session, PARAM: first}[named]
        closing_before(monkeypatch, a, "begin_turn", session, closer=b)
        with refused(code, named):
            await a.begin(ask("b", **{named: given}))


async def test_other_changes_that_another_server_forestalls(url, monkeypatch):
    async with servers(url) as (a, b):
        for method, change in (
            ("append_turn", lambda one, _: add_items(a, one)),
            ("reset_session", lambda one, _: a.service.conversations.reset(ANN, one)),
            ("rewind_session", lambda one, first: a.service.conversations.reset(ANN, one, first)),
            ("set_policy", lambda one, _: a.service.settings.set_policy(ANN, one, None)),
        ):
            session, (first,) = await told(a, "a")
            closing_before(monkeypatch, a, method, session, closer=b)
            with refused("conversation_not_found", "conversation"):
                await change(session, first)


async def add_items(world, session):
    return await world.service.conversations.add_items(ANN, session, ask("x").input)
