"""Databases of each kind, as everywhere; a soak runs on SQLite."""

import pytest

from sessiond.store import migrate


@pytest.fixture
def sqlite_files(tmp_path):
    """URLs of migrated databases: of the soak, of another if need be, and of one that is traced."""
    names = ("soak.db", "again.db", "traced.db")
    urls = [f"sqlite+aiosqlite:///{tmp_path / name}" for name in names]
    for url in urls:
        migrate.upgrade(url)
    return urls
