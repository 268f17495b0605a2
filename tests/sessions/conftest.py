"""A service on a migrated database of each kind."""

from itertools import count

import pytest

from engine.ipc.queries import GetAudit, GetStats
from tests.harness.service import SOCKET, World, until
from tests.sessions.fake_engine import FakeEngine


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
async def world(url, engine):
    world = await World.start(url, engine)
    yield world
    await world.stop()


@pytest.fixture
async def start(url):
    """Starts servers on one database; checks each when it ends."""
    running, ids = [], count(1)

    async def end():
        while running:
            rig, world = running.pop()
            assert (await rig.engine.ask(GetAudit())).violations == []
            await world.service.housekeeping.detach(SOCKET)
            await until(lambda world=world: world.service.compaction.is_idle)
            stats = await rig.engine.ask(GetStats())
            assert stats.active_blocks == 0
            assert stats.contexts <= len(list(world.service.live))
            await world.stop()
            await rig.engine.stop()

    async def start(rig, **options):
        await end()
        await rig.engine.start()
        world = await World.start(url, rig.engine, ids, **options)
        running.append((rig, world))
        return world

    yield start
    await end()
