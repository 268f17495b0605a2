"""What SQLite keeps in memory has a bound, however large the database is."""

import asyncio

import sqlalchemy as sa

from sessiond.store import migrate
from sessiond.store.store import Store
from tests.databases import sqlite_url
from tests.store.rows import prompt, session, turn


async def test_all_connections_to_a_file_keep_one_mib_of_pages(tmp_path):
    url, bounds = sqlite_url(tmp_path / "sessiond.db"), []
    await asyncio.to_thread(migrate.upgrade, url)

    def note(connection, _record):
        cursor = connection.cursor()
        cursor.execute("PRAGMA cache_size")
        bounds.append(cursor.fetchone()[0])
        cursor.close()

    store = Store(url)
    for one in store.database.engines:
        sa.event.listen(one.sync_engine, "connect", note)
    await store.begin_turn(turn(), session=session(), prompt=prompt())
    await asyncio.gather(*(store.find_session("ann", "conv_1") for _ in range(40)))
    await store.close()
    assert sorted(bounds) == [-512, -128, -128, -128, -128]
