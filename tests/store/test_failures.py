"""Databases that go away or run full, and come back."""

import asyncio
import sqlite3
import time

import pytest
import sqlalchemy as sa

from sessiond.store import database, migrate
from sessiond.store.errors import StoreError
from sessiond.store.store import Store
from tests.databases import PATIENCE_S
from tests.store.rows import kept, prompt, session, turn

pytestmark = pytest.mark.second


async def open_session(store):
    await store.membership.register(1.0, 100.0)
    await store.begin_turn(turn(), session=session(), prompt=prompt())
    await store.commit_turn(kept())


def big(name, parent):
    return turn(name, parent, ids=tuple(range(50_000)))


class TestFullDisk:
    """SQLite says "database or disk is full" for a page limit just as for a full disk."""

    @pytest.fixture
    async def limited(self, migrated_file, tmp_path):
        path = tmp_path / "full.db"
        path.write_bytes(migrated_file.read_bytes())
        store = Store(f"sqlite+aiosqlite:///{path}")
        await open_session(store)
        yield store
        await store.close()

    async def limit(self, store, pages):
        async def work(connection):
            await connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

        await store.database.write(work)

    async def test_nothing_acknowledged_is_lost_and_writes_go_on_when_there_is_room(self, limited):
        assert limited.failure is None
        await self.limit(limited, 1)  # no page beyond those it has
        with pytest.raises(StoreError, match="full"):
            await limited.begin_turn(big("resp_2", "resp_1"), session=None, prompt=None)
        assert "full" in limited.failure
        assert await limited.set_metadata("ann", "conv_1", {"a": "b"})  # fits where another was
        with pytest.raises(StoreError, match="full"):
            await limited.membership.renew(2.0, 100.0)
        assert "full" in limited.failure
        assert await limited.context_ids("ann", "sys_1", "resp_1") == [1, 2, 3, 4, 5]
        assert await limited.find_turn("ann", "resp_2") is None

        await self.limit(limited, 2**30)
        await limited.membership.renew(3.0, 100.0)
        assert limited.failure is None
        await limited.begin_turn(big("resp_2", "resp_1"), session=None, prompt=None)
        await limited.commit_turn(kept("resp_2", "resp_1"))
        assert len(await limited.context_ids("ann", "sys_1", "resp_2")) == 50_006

    async def test_a_wrong_statement_is_no_failure_of_the_database(self, limited):
        with pytest.raises(StoreError):
            await limited.create_session(session(), prompt())
        assert limited.failure is None


class TestLockedFile:
    """R05: another process holds the lock of the SQLite file."""

    async def test_r05_writes_wait_for_it_together_not_one_after_another(
        self, migrated_file, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(database, "LOCK_WAIT_S", 1.0)
        path = tmp_path / "locked.db"
        path.write_bytes(migrated_file.read_bytes())
        store = Store(f"sqlite+aiosqlite:///{path}")
        await open_session(store)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        started_s = time.monotonic()
        writes = [store.membership.renew(2.0, 100.0) for _ in range(12)]
        failures = await asyncio.gather(*writes, return_exceptions=True)
        took_s = time.monotonic() - started_s
        assert all(isinstance(one, StoreError) and "locked" in str(one) for one in failures)
        assert took_s < 6.0, "far less than 12 waits in a row"
        other.execute("ROLLBACK")
        other.close()
        await store.membership.renew(3.0, 100.0)
        await store.close()


@pytest.fixture(scope="module")
def own_server(postgres):
    """A cluster of its own: others would miss theirs."""
    from tests.store.postgres import running_postgres

    with running_postgres() as server:
        yield server


class TestPostgresAway:
    @pytest.fixture
    async def url(self, own_server):
        url = own_server.url(own_server.create())
        await asyncio.to_thread(migrate.upgrade, url)
        return url

    @pytest.fixture
    async def store(self, url):
        store = Store(url)
        await open_session(store)
        yield store
        await store.close()

    @pytest.fixture
    async def hasty(self, url):
        """Waits five seconds for an answer, which is long where the database is not held back."""
        hasty = Store(url, timeout_s=PATIENCE_S)
        await open_session(hasty)
        hasty.database._timeout_s = 5  # noqa: SLF001 -- from now on
        yield hasty
        await hasty.close()

    @pytest.mark.parametrize("at_once", [False, True], ids=["stopped", "crashed"])
    async def test_what_was_acknowledged_is_there_when_it_is_back(self, own_server, store, at_once):
        await asyncio.gather(*(store.find_session("ann", "conv_1") for _ in range(5)))
        await store.begin_turn(turn("resp_2", "resp_1"), session=None, prompt=None)
        await asyncio.to_thread(own_server.stop, at_once=at_once)
        for ask in (
            store.commit_turn(kept("resp_2", "resp_1")),
            store.find_session("ann", "conv_1"),
            store.membership.renew(2.0, 100.0),
        ):
            with pytest.raises(StoreError):
                await ask
        assert store.failure is not None
        assert store.connections_in_use == 0

        await asyncio.to_thread(own_server.start)
        await store.membership.renew(3.0, 100.0)
        assert store.failure is None
        await store.commit_turn(kept("resp_2", "resp_1"))
        assert await store.context_ids("ann", "sys_1", "resp_2") == [1, 2, 3, 4, 5, 3, 4, 5]

    async def test_one_that_hangs_is_a_failure_in_time_and_well_when_it_goes_on(
        self, own_server, hasty
    ):
        await asyncio.gather(*(hasty.find_session("ann", "conv_1") for _ in range(5)))
        await hasty.begin_turn(turn("resp_2", "resp_1"), session=None, prompt=None)
        with own_server.frozen():
            asks = [
                hasty.commit_turn(kept("resp_2", "resp_1")),
                *(hasty.find_session("ann", "conv_1") for _ in range(20)),
                hasty.membership.renew(2.0, 100.0),
            ]
            async with asyncio.timeout(60):
                failures = await asyncio.gather(*asks, return_exceptions=True)
            assert {type(failure) for failure in failures} == {StoreError}
            assert "did not answer" in str(failures[0])
            assert hasty.failure is not None
            assert hasty.connections_in_use == 0
        await hasty.membership.renew(3.0, 100.0)
        assert hasty.failure is None
        await hasty.commit_turn(kept("resp_2", "resp_1"))
        assert await hasty.context_ids("ann", "sys_1", "resp_2") == [1, 2, 3, 4, 5, 3, 4, 5]

    async def test_a_statement_in_another_s_way_is_cut_on_the_server_too(self, hasty):
        """A lock that is never given back: whoever waits for it fails, and waits no more."""
        locked, done = asyncio.Event(), asyncio.Event()

        async def hold():
            async with hasty.database.engines[0].connect() as connection:
                await connection.execute(sa.text("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE"))
                locked.set()
                await done.wait()

        holding = asyncio.create_task(hold())
        await locked.wait()
        async with asyncio.timeout(60):
            with pytest.raises(StoreError, match="did not answer for 5 s"):
                await hasty.begin_turn(turn("resp_2", "resp_1"), session=None, prompt=None)
        waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        async with asyncio.timeout(60):
            while await hasty.database.read(lambda connection: connection.scalar(waiting)):
                pass
        done.set()
        await holding
        assert hasty.connections_in_use == 0

    async def test_closing_does_not_wait_for_one_that_hangs(self, own_server, hasty):
        with own_server.frozen():
            async with asyncio.timeout(60):
                await asyncio.gather(hasty.find_session("a", "b"), return_exceptions=True)
                await hasty.close()

    async def test_a_connection_that_is_cut_in_a_transaction_is_replaced(self, own_server, store):
        async def cut(connection):
            pid = await connection.scalar(sa.text("SELECT pg_backend_pid()"))

            async def kill(other):
                await other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})

            await store.database.write(kill)
            await connection.execute(sa.text("SELECT 1"))

        with pytest.raises(StoreError):
            await store.database.write(cut)
        assert store.connections_in_use == 0
        assert await store.find_session("ann", "conv_1") is not None
