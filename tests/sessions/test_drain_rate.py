"""How fast turns end: what counts as an end, and who is told when to come again by it."""

import pytest

from sessiond.errors import RequestError
from sessiond.sessions.demand import DrainRate
from tests.fakes.fake_clock import FakeClock
from tests.harness.service import World, ask, finish


@pytest.mark.parametrize(
    ("ends", "now", "expected"),
    [([], 5, 1), ([0, 0.1], 0.2, 1), ([0, 10, 20], 30, 10), ([0], 1000, 60)],
)
def test_it_is_the_time_until_one_more_place_is_free(ends, now, expected):
    clock = FakeClock()
    rate = DrainRate(clock)
    for clock.now_s in ends:
        rate.ended()
    clock.now_s = now
    assert rate.retry_after_s() == expected


async def ended_every(world, seconds, turns=4):
    for _ in range(turns):
        await world.turn(ask("a"))
        world.ticks.advance(seconds)


@pytest.fixture
async def world_of(url, engine):
    worlds = []

    async def make(**limits):
        ticks = FakeClock()
        world = await World.start(url, engine, ticks=ticks, **limits)
        world.ticks = ticks
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        await world.stop()


@pytest.mark.parametrize("seconds", [3, 20])
async def test_who_finds_the_queue_full_is_told_how_fast_turns_end(world_of, engine, seconds):
    world = await world_of(max_outstanding=1)
    await ended_every(world, seconds)
    await world.bind(ask("b"))
    with pytest.raises(RequestError) as refused:
        await world.bind(ask("c"))
    assert (refused.value.code, refused.value.retry_after_s) == ("queue_full", seconds)


async def test_turns_that_waited_in_vain_make_the_drain_no_faster(world_of, engine):
    """A hundred that are refused at once would all be told to come again at once."""
    world = await world_of()
    await ended_every(world, 10)
    engine.auto = False
    for code in ("queue_timeout", "queue_full") * 10:
        turn = await world.begin(ask("b"))
        engine.fail(turn.accepted.response_id, code)
        assert (await finish(turn)).error.code == code
    assert world.service.drain_rate.retry_after_s() == 10


async def test_nor_do_turns_that_never_began(world_of, engine):
    world = await world_of(demand_high_watermark=0.2)
    await ended_every(world, 10)
    engine.auto = False
    await world.begin(ask("x" * 100))
    for _ in range(20):
        with pytest.raises(RequestError, match="turns need") as refused:
            await world.begin(ask("y" * 150))
        await world.service.turns.drop(await world.bind(ask("z")))
    assert refused.value.code == "queue_full"
    assert world.service.drain_rate.retry_after_s() == 10


async def test_one_that_failed_has_made_room_all_the_same(world_of, engine):
    world = await world_of()
    await ended_every(world, 10)
    engine.auto = False
    turn = await world.begin(ask("b"))
    engine.fail(turn.accepted.response_id, "internal_error")
    await finish(turn)
    assert world.service.drain_rate.retry_after_s() == 8
