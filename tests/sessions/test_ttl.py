"""Sessions that nobody comes back to are deleted, if that is wanted."""

from tests.harness.service import ANN, SOCKET, World, ask, finish, until

DAY = 86_400.0


async def closed(world, session):
    return (await world.store.find_session("ann", session)).closed_at is not None


async def test_those_that_are_old_and_held_by_nobody_go_with_their_text(url, engine):
    world = await World.start(url, engine, session_ttl_s=DAY, reap_every_s=0.001)
    old = (await world.turn(ask("hi")))[0].accepted
    await world.service.housekeeping.detach(SOCKET)
    world.clock.advance(DAY / 2)
    world.service.housekeeping.attach(SOCKET)
    held = (await world.turn(ask("hi")))[0].accepted
    world.clock.advance(DAY / 2 + 61)
    await until(lambda: old.session_id not in engine.contexts)
    world.clock.advance(DAY)
    young = (await world.turn(ask("hi")))[0].accepted
    await _settled(world)
    assert await closed(world, old.session_id)
    assert await world.store.find_turn("ann", old.response_id) is None, "its text is deleted"
    for kept in (held, young):
        assert not await closed(world, kept.session_id), "a socket holds it"
    await world.stop()


async def test_those_that_this_server_never_loaded_go_too(url, engine):
    world = await World.start(url, engine)
    session = (await world.turn(ask("hi")))[0].accepted.session_id
    await world.stop()
    later = World(url, engine, iter(range(1000, 2000)), session_ttl_s=DAY, reap_every_s=0.001)
    later.clock.advance(DAY * 2)
    await later.service.start()
    await _settled(later)
    assert await closed(later, session)
    await later.stop()


async def test_one_in_which_a_turn_runs_stays_and_without_the_setting_all_do(url, engine):
    engine.auto = False
    world = await World.start(url, engine, session_ttl_s=DAY, reap_every_s=0.001)
    turn = await world.begin(ask("hi", background=True))
    world.clock.advance(DAY * 3)
    await _settled(world)
    assert not await closed(world, turn.accepted.session_id)
    engine.finish(turn.accepted.response_id)
    await finish(turn)
    await world.stop()
    forever = await World.start(url, engine, iter(range(1000, 2000)))
    forever.clock.advance(DAY * 1000)
    assert await forever.service.conversations.get(ANN, turn.accepted.session_id)
    await forever.stop()


async def _settled(world):
    """Until the reaper has looked at all there is, as it does once a minute at most."""
    housekeeping = world.service.housekeeping
    world.clock.advance(61)
    before = housekeeping.ttl_due_at
    await until(lambda: housekeeping.ttl_due_at > max(before, world.clock.now_s))
