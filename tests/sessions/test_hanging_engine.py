"""An engine that hangs in a step: nobody hangs with it for ever."""

import asyncio

import pytest

from engine.ipc.messages import ReleaseContext
from sessiond.sessions.limits import ServiceLimits
from tests.harness.service import ANN, SOCKET, World, ask

IMPATIENT = {"cancel_timeout_s": 0.01, "ask_timeout_s": 0.01, "drain_timeout_s": 0.01}


@pytest.fixture
async def world(url, engine):
    world = await World.start(url, engine, **IMPATIENT)
    yield world
    await world.stop()


async def hanging_turn(world, engine):
    engine.auto = False
    turn = await world.begin(ask("hi"))
    engine.begin(turn.accepted.response_id)
    engine.hangs = True
    return turn


def test_waits_for_an_engine_are_bounded_by_default():
    assert ServiceLimits().cancel_timeout_s <= 10
    assert ServiceLimits().ask_timeout_s <= 10


async def test_a_socket_that_leaves_does_not_wait_for_it(world, engine):
    turn = await hanging_turn(world, engine)
    async with asyncio.timeout(60):
        await world.service.housekeeping.detach(SOCKET)
    assert not turn.ended.is_set()


async def test_what_a_socket_left_is_released_when_the_turn_ends_after_all(world, engine):
    turn = await hanging_turn(world, engine)
    session = turn.accepted.session_id
    await world.service.housekeeping.detach(SOCKET)
    engine.hangs = False
    engine.commands.clear()  # it was told already, and is told again: it may have died meanwhile
    engine.incomplete(turn.accepted.response_id, "disconnected")
    await turn.ended.wait()
    assert engine.sent(ReleaseContext) == [ReleaseContext(session=session)]


async def test_a_drain_does_not_wait_for_it(world, engine):
    await hanging_turn(world, engine)
    async with asyncio.timeout(60):
        await world.service.drain()


async def test_it_hides_no_session_from_who_looks(world, engine):
    turn = await hanging_turn(world, engine)
    async with asyncio.timeout(60):
        view = await world.service.inspector.session(ANN, turn.accepted.session_id)
        page = await world.service.inspector.page(ANN, 10, None)
    assert (view.state, view.tier) == ("running", "none")
    assert [each.id for each in page.sessions] == [turn.accepted.session_id]
