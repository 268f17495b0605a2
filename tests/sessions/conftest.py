"""A migrated database per test, a service on it."""

import shutil
from itertools import count

import pytest

from engine.messages import GetAudit, GetStats
from sessiond.store import migrate
from tests.sessions.fake_engine import FakeEngine
from tests.sessions.world import SOCKET, World, until


@pytest.fixture(scope="session")
def migrated(tmp_path_factory):
    path = tmp_path_factory.mktemp("db") / "migrated.db"
    migrate.upgrade(f"sqlite+aiosqlite:///{path}")
    return path


@pytest.fixture
def url(migrated, tmp_path):
    shutil.copy(migrated, tmp_path / "sessiond.db")
    return f"sqlite+aiosqlite:///{tmp_path / 'sessiond.db'}"


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
            await world.service.detach(SOCKET)
            await until(lambda world=world: not world.service._compaction._works)
            stats = await rig.engine.ask(GetStats())
            assert stats.active_blocks == 0
            assert stats.contexts <= len(list(world.service._parts.sessions))
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
