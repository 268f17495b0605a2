"""Databases of each kind, as everywhere; a soak runs on SQLite."""

import pytest

from sessiond.store import migrate


@pytest.fixture
def sqlite_file(tmp_path):
    """The URL of a migrated database."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'soak.db'}"
    migrate.upgrade(url)
    return url
