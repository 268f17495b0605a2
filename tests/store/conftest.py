"""A migrated database per test, of each kind."""

import pytest

from sessiond.store.store import Store
from tests.databases import PATIENCE_S


@pytest.fixture
async def store(url):
    store = Store(url, timeout_s=PATIENCE_S)
    yield store
    await store.close()
