"""A migrated database per test."""

import shutil

import pytest

from sessiond.store import migrate
from sessiond.store.store import Store


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
async def store(url):
    store = Store(url)
    yield store
    await store.close()
