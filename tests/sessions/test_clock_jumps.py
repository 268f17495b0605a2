"""The wall clock is put forward or back while all goes on: nothing ends for that alone."""

from contextlib import asynccontextmanager
from itertools import count

import pytest

from engine.ipc.messages import ReleaseContext
from sessiond.sessions.expiry_clock import ExpiryClock
from sessiond.sessions.hooks import Hooks
from tests.fakes.fake_clock import FakeClock
from tests.harness.service import ANN, World, ask, finish, timers
from tests.sessions.fake_engine import FakeEngine
from tests.sessions.quota_words import limit, refusal_of, use_of

YEAR_S = 365 * 86_400.0
START_S = 1_700_000_000.0
LEASE_S = 15.0
JUMPS = (YEAR_S, 60.0, -60.0, -YEAR_S)


@asynccontextmanager
async def servers(url, names="a", **limits):
    """Servers on one database with one wall clock, that jumps, and one that ticks."""
    clock, ticks, ids = FakeClock(START_S), FakeClock(), count(1)
    worlds = [
        await World.start(url, FakeEngine(), ids, clock=clock, ticks=ticks, replica=name, **limits)
        for name in names
    ]
    try:
        yield (clock, ticks, *worlds)
    finally:
        for world in worlds:
            await world.stop()


def pass_time(seconds, *clocks):
    for clock in clocks:
        clock.advance(seconds)


class TestExpiryClock:
    @pytest.fixture
    def clocks(self):
        return FakeClock(START_S), FakeClock()

    @pytest.mark.parametrize("jump_s", JUMPS)
    def test_nothing_is_over_until_those_that_live_could_say_so(self, clocks, jump_s):
        expiry = ExpiryClock(*clocks, settle_s=10.0)
        assert expiry() == START_S
        clocks[0].advance(jump_s)
        assert expiry() == 0
        pass_time(9.5, *clocks)
        assert expiry() == 0
        pass_time(0.5, *clocks)
        assert expiry() == START_S + jump_s + 10

    def test_each_jump_restarts_the_settle_time(self, clocks):
        expiry = ExpiryClock(*clocks, settle_s=10.0)
        for _ in range(3):
            clocks[0].advance(60)
            assert expiry() == 0
            pass_time(9, *clocks)
            assert expiry() == 0

    def test_a_clock_that_is_slewed_has_not_jumped(self, clocks):
        expiry = ExpiryClock(*clocks, settle_s=10.0)
        for _ in range(100):
            pass_time(1, *clocks)
            clocks[0].advance(0.01)
            assert expiry() == clocks[0]()


async def test_a_turn_is_told_of_with_times_of_the_wall_clock(url):
    told = []
    async with servers(url, hooks=Hooks(turn_reported=told.append)) as (clock, ticks, world):
        world.engine.auto = False
        turn = await world.begin(ask("1"))
        pass_time(2, clock, ticks)
        world.engine.begin(turn.accepted.response_id)
        world.engine.finish(turn.accepted.response_id)
        await finish(turn)
        await turn.ended.wait()
    (one,) = told
    assert (one.received_at, one.ended_at) == (START_S, START_S + 2)


@pytest.mark.parametrize("jump_s", JUMPS)
async def test_a_deadline_is_neither_nearer_nor_further(url, jump_s):
    async with servers(url) as (clock, _, world):
        engine = world.engine
        await world.turn(ask("1"), lane="a")
        engine.auto = False
        bound = await world.bind(ask("2", deadline_ms=60_000), lane="b")
        clock.advance(jump_s)
        turn = await world.service.turns.run(bound)
        engine.begin(turn.accepted.response_id)
        engine.finish(turn.accepted.response_id)
        assert (await finish(turn)).status == "completed"


@pytest.mark.parametrize("jump_s", JUMPS)
async def test_a_session_without_a_socket_keeps_its_kv_as_long_as_it_was_told(url, jump_s):
    async with servers(url, http_hold_s=60.0, reap_every_s=1000.0) as (clock, ticks, world):
        turn, _ = await world.turn(ask("1"), attachment=None)
        released = ReleaseContext(session=turn.accepted.session_id)
        clock.advance(jump_s)
        pass_time(59, ticks)
        world.service.retention.reap()
        assert world.engine.sent(ReleaseContext) == []
        pass_time(1, ticks)
        world.service.retention.reap()
        assert world.engine.sent(ReleaseContext) == [released]


@pytest.mark.parametrize("jump_s", JUMPS)
async def test_servers_do_not_take_each_other_for_dead(url, jump_s):
    async with servers(url, "ab") as (clock, ticks, a, b):
        first, _ = await a.turn(ask("1"))
        session = first.accepted.session_id
        a.engine.auto = False
        running = await a.begin(ask("2", conversation=session))
        clock.advance(jump_s)
        other = await refusal_of(b, ask("x", conversation=session))
        assert other.code == "turn_in_progress"
        for world in (b, a, b, a, b):  # b looks first
            await world.service.replica.beat()
            pass_time(5, clock, ticks)
        row = await b.store.find_turn("ann", running.accepted.response_id)
        assert row.status == "running"
        a.engine.begin(running.accepted.response_id)
        a.engine.finish(running.accepted.response_id)
        assert (await finish(running)).status == "completed"


@pytest.mark.parametrize("jump_s", JUMPS)
async def test_a_server_that_died_before_the_jump_is_found_dead_soon_after_it(url, jump_s):
    async with servers(url, "ab") as (clock, ticks, a, b):
        first, _ = await a.turn(ask("1"))
        a.engine.auto = False
        running = await a.begin(ask("2", conversation=first.accepted.session_id))
        for task in timers(a.service):
            task.cancel()
        clock.advance(jump_s)
        for _ in range(40):
            await b.service.replica.beat()
            pass_time(5, clock, ticks)
        row = await b.store.find_turn("ann", running.accepted.response_id)
        assert row.status == "failed"


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])
async def test_conversations_that_nobody_abandoned_are_not_deleted(url, jump_s):
    limits = {"session_ttl_s": 3600.0, "http_hold_s": 0.0, "reap_every_s": 1000.0}
    async with servers(url, **limits) as (clock, ticks, world):
        turn, _ = await world.turn(ask("1"), attachment=None)
        session = turn.accepted.session_id
        housekeeping = world.service.housekeeping
        world.service.retention.reap()
        clock.advance(jump_s)
        for _ in range(50):
            await housekeeping.end_abandoned()
            pass_time(70, clock, ticks)
        assert (await world.store.find_session("ann", session)).closed_at is None
        if jump_s > 0:
            pass_time(3600, clock, ticks)
            await housekeeping.end_abandoned()
            gone = await world.store.find_session("ann", session)
            assert gone is None or gone.closed_at is not None


@pytest.mark.parametrize("jump_s", JUMPS)
async def test_a_running_turn_keeps_what_it_reserved_and_settles(url, jump_s):
    async with servers(url, reap_every_s=1000.0) as (clock, ticks, world):
        await limit(world, max_concurrent_turns=1)
        world.engine.auto = False
        turn = await world.begin(ask("1"))
        clock.advance(jump_s)
        for _ in range(20):
            await world.service.quotas.tend([turn.accepted.response_id])
            assert (await use_of(world)).turns == 1
            pass_time(5, clock, ticks)
        world.engine.begin(turn.accepted.response_id)
        world.engine.finish(turn.accepted.response_id)
        await finish(turn)
        assert (await use_of(world)).turns == 0


async def test_what_a_dead_server_reserved_comes_back_though_the_clock_went_back(url):
    async with servers(url, reap_every_s=1000.0) as (clock, ticks, world):
        await limit(world, max_concurrent_turns=1)
        world.engine.auto = False
        await world.begin(ask("1"))
        clock.advance(-YEAR_S)
        for _ in range(20):
            await world.service.quotas.tend([])  # as if its server were another, and dead
            pass_time(5, clock, ticks)
        assert (await use_of(world)).turns == 0


async def test_a_window_that_a_wrong_clock_has_filled_holds_nobody_up(url):
    async with servers(url) as (clock, _, world):
        await limit(world, tokens_per_minute=300, tokens_per_day=300)
        clock.advance(YEAR_S)
        await world.turn(ask("x" * 150, max_output_tokens=50))
        refused = await refusal_of(world, ask("x" * 150))
        assert refused.code in {"rate_limit_exceeded", "quota_exceeded"}
        clock.advance(-YEAR_S)
        _, finished = await world.turn(ask("x" * 150, max_output_tokens=50))
        assert finished.status == "completed"
        use = await use_of(world)
        assert use.minute_start <= clock()
        assert use.day_start <= clock()


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])
async def test_a_request_that_comes_again_is_known_by_its_key(url, jump_s):
    async with servers(url) as (clock, _, world):
        create = world.service.openings.create
        first = await create(ANN, (), {}, key="k")
        clock.advance(jump_s)
        assert (await create(ANN, (), {}, key="k")).id == first.id


async def test_residency_is_charged_for_the_time_that_passed(url):
    async with servers(url, reap_every_s=1000.0) as (clock, ticks, world):
        await world.turn(ask("1"))
        pass_time(5, clock, ticks)
        await world.service.quotas.residency.sample()
        clock.advance(YEAR_S)
        pass_time(5, clock, ticks)
        await world.service.quotas.residency.sample()
        held = sum(world.engine.cached.values())
        assert 0 < (await use_of(world)).byte_seconds <= 12 * held
