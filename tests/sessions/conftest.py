"""A service on a migrated database of each kind."""

import pytest

from tests.sessions.fake_engine import FakeEngine
from tests.sessions.world import World


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
async def world(url, engine):
    world = await World.start(url, engine)
    yield world
    await world.stop()
