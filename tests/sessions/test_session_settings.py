"""What is said of a session beside its turns: retention, hints, parking, policies."""

import pytest

from engine.ipc.messages import HintContext, ParkContext, ReleaseContext
from sessiond.domain import PolicyChoice
from sessiond.errors import RequestError
from tests.harness.service import ANN, BOB, SOCKET, World, ask, finish
from tests.sessions.fake_engine import FakeEngine

SCRIPTED = PolicyChoice(type="scripted")


async def opened(world, **hints):
    turn, _ = await world.turn(ask("hi"))
    session = turn.accepted.session_id
    if hints:
        await world.service.settings.update(ANN, session, **hints)
    return session


async def state(world, session):
    return (await world.service.inspector.session(ANN, session)).state


class TestRetention:
    async def test_park_moves_kv_below_when_the_last_socket_leaves(self, world, engine):
        session = await opened(world, retention="park")
        await world.service.housekeeping.detach(SOCKET)
        assert engine.sent(ParkContext) == [ParkContext(session=session)]
        assert engine.sent(ReleaseContext) == []
        assert await state(world, session) == "cold", "no tier holds it"
        world.service.housekeeping.attach(SOCKET)
        await world.turn(ask("a", conversation=session))
        assert await state(world, session) == "idle"

    async def test_hold_keeps_kv_for_its_time_and_no_longer(self, world, engine):
        session = await opened(world, retention="hold", ttl_s=500.0)
        hints = len(engine.sent(HintContext))
        await world.service.housekeeping.detach(SOCKET)
        assert len(engine.sent(HintContext)) == hints + 1  # its time begins now
        world.clock.advance(499)
        world.service.retention.reap()
        assert engine.cached[session]
        world.clock.advance(2)
        world.service.retention.reap()
        assert not engine.cached[session]
        assert await state(world, session) == "cold"

    async def test_hold_without_a_time_lasts_as_long_as_a_request_without_a_socket(
        self, world, engine
    ):
        session = await opened(world, retention="hold")
        await world.service.housekeeping.detach(SOCKET)
        world.clock.advance(world.limits.http_hold_s - 1)
        world.service.retention.reap()
        assert engine.cached[session]
        world.clock.advance(2)
        world.service.retention.reap()
        assert not engine.cached[session]

    async def test_a_session_of_requests_is_parked_when_its_time_is_over(self, world, engine):
        turn, _ = await world.turn(ask("hi"), attachment=None)
        session = turn.accepted.session_id
        await world.service.settings.update(ANN, session, retention="park")
        world.clock.advance(world.limits.http_hold_s + 1)
        world.service.retention.reap()
        assert engine.sent(ParkContext) == [ParkContext(session=session)]

    async def test_what_was_said_outlives_the_server(self, url, engine):
        world = await World.start(url, engine)
        session = await opened(world, retention="park")
        await world.stop()
        engine = FakeEngine()
        world = await World.start(url, engine, iter(range(1000, 2000)))
        await world.turn(ask("a", conversation=session))
        await world.service.housekeeping.detach(SOCKET)
        assert len(engine.sent(ParkContext)) == 1
        await world.stop()


class TestHints:
    async def test_the_engine_is_told_at_once(self, world, engine):
        session = await opened(world, priority="high", ttl_s=30.0)
        assert engine.sent(HintContext) == [HintContext(session=session, ttl_s=30.0, priority=2)]

    async def test_nothing_new_is_not_told(self, world, engine):
        session = await opened(world, priority="normal")
        assert engine.sent(HintContext) == []
        await world.service.settings.update(ANN, session)
        assert engine.sent(HintContext) == []

    async def test_an_engine_that_has_lost_them_is_told_again(self, world, engine):
        session = await opened(world, priority="low")
        engine.lose()
        await world.turn(ask("a", conversation=session))
        hint = HintContext(session=session, priority=0)
        assert engine.sent(HintContext) == [hint, hint]
        await world.turn(ask("b", conversation=session))
        assert len(engine.sent(HintContext)) == 2


class TestPark:
    async def test_an_idle_session_is_parked_and_comes_back(self, world, engine):
        session = await opened(world)
        before = await world.context(session)
        view = await world.service.settings.park(ANN, session)
        assert view.state == "cold", "no tier holds it"
        assert engine.sent(ParkContext) == [ParkContext(session=session)]
        await world.turn(ask("a", conversation=session))
        assert engine.contexts[session][: len(before)] == before
        assert await state(world, session) == "idle"

    async def test_a_session_whose_kv_a_tier_holds_is_shown_as_parked(self, world, engine):
        engine.has_disk_tier = True
        session = await opened(world)
        tokens = len(await world.context(session))
        view = await world.service.settings.park(ANN, session)
        assert (view.state, view.tier) == ("parked", "disk")
        assert (view.blocks.device, view.blocks.disk) == (0, tokens // 16)
        assert view.kv_bytes.disk == view.blocks.disk * 16 * engine.info.kv_bytes_per_token > 0
        await world.turn(ask("a", conversation=session))
        view = await world.service.inspector.session(ANN, session)
        assert (view.state, view.tier) == ("idle", "device")

    async def test_a_busy_session_is_not_parked(self, world, engine):
        session = await opened(world)
        engine.auto = False
        turn = await world.begin(ask("a", conversation=session))
        with pytest.raises(RequestError) as error:
            await world.service.settings.park(ANN, session)
        assert error.value.code == "turn_in_progress"
        assert engine.sent(ParkContext) == []
        turn.cancel(keep=False)
        await finish(turn)

    async def test_a_session_that_holds_nothing_stays_cold(self, world, engine):
        session = await opened(world)
        await world.service.housekeeping.detach(SOCKET)
        assert (await world.service.settings.park(ANN, session)).state == "cold"

    async def test_m04_kv_on_disk_outlives_the_engine_and_is_still_shown(self, world, engine):
        engine.has_disk_tier = True
        session = await opened(world)
        parked = await world.service.settings.park(ANN, session)
        engine.lose()
        view = await world.service.inspector.session(ANN, session)
        assert (view.state, view.tier, view.blocks) == ("parked", "disk", parked.blocks)
        assert view.kv_bytes == parked.kv_bytes
        engine.disk_keys.clear()
        view = await world.service.inspector.session(ANN, session)
        assert (view.state, view.tier) == ("cold", "none")

    async def test_parked_sessions_are_forgotten_in_their_turn(self, url, engine):
        world = await World.start(url, engine, max_cold_contexts=1)
        first, second = await opened(world), await opened(world)
        for session in (first, second):
            await world.service.settings.park(ANN, session)
        assert first not in engine.contexts
        assert second in engine.contexts
        await world.stop()


async def test_what_is_said_while_a_turn_runs_holds_from_the_next_one_on(world, engine):
    session = await opened(world)
    engine.auto = False
    turn = await world.begin(ask("a", conversation=session))
    view = await world.service.settings.update(
        ANN, session, policy=SCRIPTED, retention="park", priority="high"
    )
    assert (view.state, view.policy) == ("running", "scripted")
    engine.begin(turn.accepted.response_id)
    engine.finish(turn.accepted.response_id)
    await finish(turn)
    assert world.policies.scripted.views == []
    engine.auto = True
    await world.turn(ask("b", conversation=session))
    assert len(world.policies.scripted.views) == 1
    await world.service.housekeeping.detach(SOCKET)
    assert len(engine.sent(ParkContext)) == 1


async def test_sessions_of_others_do_not_exist(world):
    session = await opened(world)
    for work in (
        world.service.settings.set_policy(BOB, session, SCRIPTED),
        world.service.settings.update(BOB, session, priority="low"),
        world.service.settings.park(BOB, session),
    ):
        with pytest.raises(RequestError) as error:
            await work
        assert error.value.code == "conversation_not_found"
