"""A migrated database per test, of each kind."""

import pytest

from sessiond.store.store import Store


@pytest.fixture
async def store(url):
    store = Store(url)
    yield store
    await store.close()
