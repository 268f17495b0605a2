"""Turns that go on when their client leaves."""

import asyncio

from engine.ipc.messages import CancelTurn, ReleaseContext
from tests.harness.service import ANN, SOCKET, World, ask, finish, until


async def test_a_background_turn_outlives_its_socket_and_then_its_session_is_released(
    world, engine
):
    engine.auto = False
    turn = await world.begin(ask("a", background=True))
    name, session = turn.accepted.response_id, turn.accepted.session_id
    engine.begin(name)
    engine.say(name, "half ")
    await world.service.housekeeping.detach(SOCKET)
    assert engine.sent(CancelTurn) == []
    view = await world.service.inspector.response(ANN, name)
    assert (view.finished, view.accepted.request.background) == (None, True)
    engine.say(name, "and half")
    engine.finish(name)
    await until(turn.ended.is_set)
    view = await world.service.inspector.response(ANN, name)
    assert (view.finished.status, view.finished.text) == ("completed", "half and half")
    assert engine.sent(ReleaseContext) == [ReleaseContext(session=session)]
    engine.auto = True
    world.service.housekeeping.attach(SOCKET)
    _, finished = await world.turn(ask("b", previous_response_id=name))
    assert finished.status == "completed"


async def test_a_background_turn_of_a_request_outlives_its_reader(world, engine):
    engine.auto = False
    turn = await world.begin(ask("a", background=True), attachment=None)
    name = turn.accepted.response_id
    entries = turn.entries()
    engine.begin(name)
    await anext(entries)
    await entries.aclose()
    assert engine.sent(CancelTurn) == []
    engine.say(name, "hi")
    engine.finish(name)
    await until(turn.ended.is_set)
    assert (await world.service.inspector.response(ANN, name)).finished.text == "hi"


async def test_a_background_turn_is_cancelled_by_its_id(world, engine):
    engine.auto = False
    turn = await world.begin(ask("a", background=True), attachment=None)
    engine.begin(turn.accepted.response_id)
    engine.say(turn.accepted.response_id, "half")
    await world.service.followers.cancel(ANN, turn.accepted.response_id, attachment=None, keep=True)
    view = await world.service.inspector.response(ANN, turn.accepted.response_id)
    assert (view.finished.status, view.finished.reason) == ("incomplete", "cancelled")
    assert view.finished.text == "half"


async def test_turns_beside_a_background_turn_are_cut_as_ever(world, engine):
    engine.auto = False
    stays = await world.begin(ask("a", background=True))
    goes = await world.begin(ask("b"))
    await world.service.housekeeping.detach(SOCKET)
    assert (await finish(goes)).reason == "cancelled"
    engine.finish(stays.accepted.response_id)
    assert (await finish(stays)).status == "completed"


async def test_a_background_turn_that_a_server_took_with_it_is_told_as_failed(url, engine):
    world = await World.start(url, engine)
    engine.auto = False
    turn = await world.begin(ask("a", background=True))
    await world.stop()
    world = await World.start(url, engine)
    view = await world.service.inspector.response(ANN, turn.accepted.response_id)
    assert view.finished.error.code == "engine_restarted"
    await world.stop()


async def test_t50_turns_that_are_written_hold_no_connection(world, engine):
    """Fifty of them, each followed by a second reader; questions of others are answered."""
    engine.auto = False
    turns = [await world.begin(ask(str(n), background=True), lane=str(n)) for n in range(50)]
    names = [turn.accepted.response_id for turn in turns]
    for name in names:
        engine.begin(name)
        engine.say(name, "half")
    replays = [await world.service.followers.follow(ANN, name) for name in names]
    readers = [asyncio.create_task(whole(one)) for one in replays]
    await until(lambda: world.store.connections_in_use == 0)  # a heartbeat may have one
    async with asyncio.timeout(60):
        assert len((await world.service.inspector.page(ANN, 100, None)).sessions) == 50
        _, finished = await auto(world, engine)
    assert finished.status == "completed"
    for name in names:
        engine.finish(name)
    ends = [entries[-1].status for entries in await asyncio.gather(*readers)]
    assert ends == ["completed"] * 50


async def whole(replay):
    return [entry async for entry in replay.entries()]


async def auto(world, engine):
    engine.auto = True
    try:
        return await world.turn(ask("short"), lane="short")
    finally:
        engine.auto = False
