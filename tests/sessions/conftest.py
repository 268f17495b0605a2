"""A migrated database per test, a service on it."""

import shutil

import pytest

from sessiond.store import migrate
from tests.sessions.fake_engine import FakeEngine
from tests.sessions.world import World


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
