"""Databases of each kind, as everywhere; a soak runs on SQLite."""

import pytest

from sessiond.store import migrate


@pytest.fixture
def sqlite_files(tmp_path):
    """URLs of two migrated databases: of the soak, and of one that is traced."""
    urls = [f"sqlite+aiosqlite:///{tmp_path / name}" for name in ("soak.db", "traced.db")]
    for url in urls:
        migrate.upgrade(url)
    return urls
