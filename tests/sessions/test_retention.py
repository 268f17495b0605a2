"""Whose KV is given back, and when."""

import asyncio

import pytest

from engine.ipc.messages import CancelTurn, CloseContext, ParkContext, ReleaseContext, SetContext
from sessiond.domain import AttachmentId
from sessiond.sessions.live_session import State
from sessiond.store.errors import StoreError
from tests.harness.service import ANN, SOCKET, World, ask, settled, until

OTHER = AttachmentId("sock_2")


def keep_alive(world, session, seconds):
    world.service.retention.keep_alive(world.service.live.get(session), seconds)


async def over_http(world, text="hi", **where):
    turn, _ = await world.turn(ask(text, **where), attachment=None)
    return turn.accepted.session_id


async def test_an_http_session_is_held_for_a_while_and_then_released(world, engine):
    session = await over_http(world)
    world.clock.advance(world.limits.http_hold_s - 1)
    world.service.retention.reap()
    assert engine.cached[session]
    world.clock.advance(2)
    world.service.retention.reap()
    world.service.retention.reap()
    assert engine.sent(ReleaseContext) == [ReleaseContext(session=session)]
    assert engine.cached[session] == 0
    await over_http(world, conversation=session)
    assert len(engine.sent(SetContext)) == 1  # the engine still knows the ids


async def test_each_http_turn_starts_the_time_anew(world, engine):
    session = await over_http(world)
    world.clock.advance(world.limits.http_hold_s - 1)
    await over_http(world, conversation=session)
    world.clock.advance(2)
    world.service.retention.reap()
    assert engine.cached[session]


async def test_a_hold_may_be_longer_or_end_at_once(world, engine):
    long, short = await over_http(world), await over_http(world)
    keep_alive(world, long, 1000)
    keep_alive(world, short, 0)
    world.clock.advance(900)
    world.service.retention.reap()
    assert engine.cached[long]
    assert not engine.cached[short]


async def test_a_socket_that_joins_ends_the_hold(world, engine):
    session = await over_http(world)
    await world.turn(ask("a", conversation=session))
    keep_alive(world, session, 0)
    world.clock.advance(1000)
    world.service.retention.reap()
    assert engine.cached[session]
    await world.service.housekeeping.detach(SOCKET)
    assert not engine.cached[session]


async def test_a_session_whose_closing_fails_is_held_no_longer_than_any(world, engine, monkeypatch):
    session = await over_http(world)
    world.clock.advance(1000)
    world.service.retention.reap()
    world.service.retention.forget(world.service.live.get(session))

    async def fail(*_):
        raise StoreError("database is locked")

    monkeypatch.setattr(world.store, "close_session", fail)
    with pytest.raises(StoreError):
        await world.service.conversations.close(ANN, session)
    live = world.service.live.get(session)
    assert world.service.retention._deadlines.take_due(world.clock() + 1000) == [live.id]  # noqa: SLF001 -- what the reaper would find


async def test_the_last_of_several_sockets_releases(world, engine):
    world.service.housekeeping.attach(OTHER)
    turn, _ = await world.turn(ask("hi"))
    session = turn.accepted.session_id
    await world.turn(ask("a", conversation=session), attachment=OTHER)
    await world.service.housekeeping.detach(SOCKET)
    assert engine.cached[session]
    await world.service.housekeeping.detach(OTHER)
    await world.service.housekeeping.detach(OTHER)
    assert not engine.cached[session]


@pytest.mark.parametrize("retention", ["release", "park"])
async def test_the_engine_has_all_kv_back_before_a_lost_turn_is_stored(
    world, engine, monkeypatch, retention
):
    first, _ = await world.turn(ask("hi"))
    session = first.accepted.session_id
    await world.service.settings.update(ANN, session, retention=retention)
    engine.auto = False
    turn = await world.begin(ask("a", conversation=session))
    stored, gate = [], asyncio.Event()
    lose = world.store.abort_turn

    async def wait_and_lose(row):
        await gate.wait()
        stored.append(row.id)
        await lose(row)

    monkeypatch.setattr(world.store, "abort_turn", wait_and_lose)
    before = len(engine.commands)
    world.service.housekeeping.leave(SOCKET)  # nothing is awaited: no other task has run
    cancel, back = engine.commands[before:]
    assert cancel == CancelTurn(turn=turn.accepted.response_id, keep=False, reason="disconnected")
    assert type(back) is {"release": ReleaseContext, "park": ParkContext}[retention]
    assert engine.cached[session] == 0
    assert stored == []
    leaving = asyncio.create_task(world.service.housekeeping.detach(SOCKET))
    gate.set()
    await settled(leaving)
    assert stored == [turn.accepted.response_id]
    assert world.service.live.get(session).state is State.RELEASED


async def test_a_session_that_is_held_or_works_in_the_background_keeps_its_kv(world, engine):
    held, _ = await world.turn(ask("hi"))
    await world.service.settings.update(
        ANN, held.accepted.session_id, retention="hold", ttl_s=1000.0
    )
    engine.auto = False
    await world.begin(ask("a", conversation=held.accepted.session_id))
    behind = await world.begin(ask("b", background=True))
    world.service.housekeeping.leave(SOCKET)
    await world.service.housekeeping.detach(SOCKET)
    assert engine.sent(ReleaseContext) == []
    assert engine.cached[held.accepted.session_id]
    engine.finish(behind.accepted.response_id)
    await until(behind.ended.is_set)
    assert engine.sent(ReleaseContext) == [ReleaseContext(session=behind.accepted.session_id)]


async def test_t01_a_socket_that_used_many_sessions_releases_them_all(world, engine):
    sessions = [(await world.turn(ask(text)))[0].accepted.session_id for text in "abcd"]
    await world.service.housekeeping.detach(SOCKET)
    assert [engine.cached[session] for session in sessions] == [0, 0, 0, 0]


async def test_a_running_turn_is_not_released_under(world, engine):
    session = await over_http(world)
    engine.auto = False
    turn = await world.begin(ask("a", conversation=session), attachment=None)
    world.clock.advance(1000)
    world.service.retention.reap()
    assert engine.sent(ReleaseContext) == []
    engine.finish(turn.accepted.response_id)
    await until(turn.ended.is_set)
    world.clock.advance(1000)
    world.service.retention.reap()
    assert not engine.cached[session]


async def test_of_the_cold_sessions_only_so_many_are_remembered(url, engine):
    world = await World.start(url, engine, max_cold_contexts=2, http_hold_s=0.0)
    sessions = [await over_http(world, text) for text in "abcd"]
    world.clock.advance(1)
    world.service.retention.reap()
    assert engine.sent(CloseContext) == [CloseContext(session=session) for session in sessions[:2]]
    assert len(list(world.service.live)) == 2
    _, finished = await world.turn(ask("e", conversation=sessions[0]))
    assert finished.status == "completed"
    assert await world.context(sessions[0]) == engine.contexts[sessions[0]]
    await world.stop()


async def test_the_reaper_runs_on_a_timer(url, engine):
    world = await World.start(url, engine, reap_every_s=0.005, http_hold_s=0.0)
    session = await over_http(world)
    world.clock.advance(1)
    await until(lambda: engine.cached[session] == 0)
    await world.stop()


async def test_an_engine_that_is_away_has_nothing_to_give_back(world, engine):
    turn, _ = await world.turn(ask("hi"))
    engine.go_away()
    await world.service.housekeeping.detach(SOCKET)
    engine.come_back()
    await over_http(world, conversation=turn.accepted.session_id)
    assert len(engine.sent(SetContext)) == 2


async def test_forks_that_fail_before_they_are_stored_leave_nothing(world, engine):
    turn, _ = await world.turn(ask("hi"))
    await world.turn(ask("a", conversation=turn.accepted.session_id))
    known = len(list(world.service.live))
    bound = await world.bind(ask("b", previous_response_id=turn.accepted.response_id))
    await world.service.turns.drop(bound)
    assert len(list(world.service.live)) == known
    page = await world.service.inspector.page(ANN, 10, None)
    assert len(page.sessions) == 1
