"""Connections and transactions. Owns the connection pools; connections never leave the store."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement

from sessiond.store.errors import StoreConfigError, StoreError
from sessiond.store.schema import metadata

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]

CONNECTIONS = 10
"""Default maximum of connections to Postgres."""

TIMEOUT_S = 15.0
"""Default transaction timeout on Postgres."""

READERS = 4
"""Maximum of read-only connections to a SQLite file; one more writes."""

_ALLOWED = "sqlite+aiosqlite:///FILE or postgresql+psycopg://USER@HOST/NAME"
LOCK_WAIT_S = 5.0
"""Maximum wait of a write for another process's lock on a SQLite file, from its call on."""

_LOCK_BY = "sessiond_lock_by"  # execution option: the time until which to wait for the lock
_WAIT_MS = "sessiond_wait_ms"  # of a connection: its `busy_timeout`
_SHORT_QUEUE_S = 0.5  # a write that waited less in our own queue waits the whole time for the lock
# Page caches per connection; the operating system caches the same pages. A reader drops its cache
# after each change by another connection.
_WRITER_CACHE_KIB = 512
_READER_CACHE_KIB = 128
_CONNECT_TIMEOUT_S = 5
_CUT_EVERY_S = 0.5
_DEADLOCK = "40P01"
_TRIES = 4  # of a transaction that Postgres cancels for a deadlock
# Errors of a database that is unreachable, full or overloaded, not those of a wrong statement.
_FAILURES = (
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    sa.exc.InternalError,
    sa.exc.TimeoutError,
    TimeoutError,
)


class Database:
    """Reader and writer connections of one database.

    SQLite takes one writer at a time; a pool of one connection lets them queue in turn instead of
    polling for the lock. Against other processes `BEGIN IMMEDIATE` takes that lock at once, since
    a reader that becomes a writer ignores the busy timeout. On Postgres both share one pool; a
    reader sees one moment on either.

    `timeout_s` bounds a transaction on Postgres (0 = none). SQLite only has the timeout of its
    lock, as a running statement can't be abandoned. It counts from the call: while another process
    holds the lock, writes that queue here do not wait for it one after another.

    Raises:
        StoreConfigError: the URL is not supported.
    """

    def __init__(
        self, url: str, *, connections: int = CONNECTIONS, timeout_s: float = TIMEOUT_S
    ) -> None:
        parsed = parse_url(url)
        self._has_file_lock = _is_sqlite(parsed)
        self._timeout_s = None if self._has_file_lock else timeout_s or None
        self._writer = writer_engine(parsed, connections=connections)
        self._reader = (
            _sqlite_reader(parsed)
            if _is_sqlite(parsed)
            else self._writer.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        )
        self._running: set[asyncio.Task[Any]] = set()
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        """Reason of the last failed insert; None when it succeeded."""
        return self._failure

    @property
    def engines(self) -> tuple[AsyncEngine, AsyncEngine]:
        """SQLAlchemy's engines: that which writes, that which reads. They may share a pool."""
        return self._writer, self._reader

    @property
    def connections_in_use(self) -> int:
        """Connections in use by transactions."""
        pools = {self._writer.pool, self._reader.pool}
        return sum(pool.checkedout() for pool in pools if isinstance(pool, sa.QueuePool))

    async def read(self, work: Work[T]) -> T:
        """Run `work` in one read-only transaction.

        Raises:
            StoreError: the database failed.
        """
        return await self._finish(self._transact(self._reader, work))

    async def write(self, work: Work[T], *, adds_rows: bool = False) -> T:
        """Run `work` in one transaction: all of it is written, or nothing.

        A full database may still replace rows, so only a transaction that `adds_rows` clears
        `failure`.

        Raises:
            StoreError: the database failed, or `work` raised one.
        """
        return await self._finish(self._write(work, adds_rows=adds_rows))

    async def close(self) -> None:
        """Wait for running transactions and close every connection."""
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._writer.dispose()
        await self._reader.dispose()

    async def _write(self, work: Work[T], *, adds_rows: bool, tries: int = _TRIES) -> T:
        lock_by = time.monotonic() + LOCK_WAIT_S if self._has_file_lock else None
        try:
            done = await self._transact(self._writer, work, lock_by)
        except StoreError as error:
            if tries > 1 and _is_deadlock(error.__cause__):
                return await self._write(work, adds_rows=adds_rows, tries=tries - 1)
            if isinstance(error.__cause__, _FAILURES):
                self._failure = str(error)
            raise
        if adds_rows:
            self._failure = None
        return done

    async def _transact(
        self, engine: AsyncEngine, work: Work[T], lock_by: float | None = None
    ) -> T:
        try:
            return await _in_time(_run(engine, work, lock_by), self._timeout_s)
        except sa.exc.SQLAlchemyError as error:
            raise StoreError(_without_detail(error)) from error
        except TimeoutError as error:
            raise StoreError(f"the database did not answer for {self._timeout_s:g} s") from error

    async def _finish(self, transaction: Coroutine[Any, Any, T]) -> T:
        """Run to the end even if the caller is cancelled: aborting would cost a connection.

        The cancellation is raised after that end, so the caller's next transaction sees its result.
        """
        task = asyncio.create_task(transaction)
        self._running.add(task)
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here; tasks that still wait get it as well


class MemoryDatabase(Database):
    """The same tables in memory, private to this process.

    The database lives in its one connection, which readers and writers share.
    """

    def __init__(self) -> None:
        self._writer = _sqlite(make_url("sqlite+aiosqlite://"), begin="BEGIN", connections=1)
        self._reader = self._writer
        self._has_file_lock = False
        self._timeout_s = None
        self._running = set()
        self._failure = None
        sa.event.listen(self._writer.sync_engine, "connect", _make_tables)


async def _run(engine: AsyncEngine, work: Work[T], lock_by: float | None) -> T:
    async with engine.connect() as connection:
        if lock_by is not None:
            await connection.execution_options(**{_LOCK_BY: lock_by})
        async with connection.begin():
            return await work(connection)


async def _in_time(transaction: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
    """Run a transaction to its end, or cancel it after `timeout_s`.

    Raises:
        TimeoutError: it was cancelled; its writes may or may not have been committed.
    """
    task = asyncio.create_task(transaction)
    await asyncio.wait([task], timeout=timeout_s)
    if task.done():
        return task.result()
    # Repeated: on each cancellation the driver asks the server to cancel the statement and waits
    # for the answer, which a stopped server never sends.
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CUT_EVERY_S)
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not log it
    raise TimeoutError


def _make_tables(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for table in metadata.sorted_tables:
        made: list[DDLElement] = [CreateTable(table)]
        made += [CreateIndex(index) for index in table.indexes]
        for statement in made:
            cursor.execute(str(statement.compile(dialect=sqlite.dialect())))
    cursor.close()


def parse_url(url: str) -> URL:
    """Parse the URL.

    Raises:
        StoreConfigError: the URL is not supported.
    """
    try:
        parsed = make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:  # the latter: a port that is no number
        raise StoreConfigError(url, _ALLOWED) from error
    if parsed.drivername == "sqlite+aiosqlite":
        if parsed.database in {None, "", ":memory:"}:
            raise StoreConfigError(
                url, _ALLOWED + " (connections cannot share an in-memory database)"
            )
    elif parsed.drivername != "postgresql+psycopg":
        raise StoreConfigError(parsed.render_as_string(hide_password=True), _ALLOWED)
    return parsed


def writer_engine(url: URL, *, connections: int = CONNECTIONS) -> AsyncEngine:
    """Connections whose transactions may write; `connections`: maximum to Postgres.

    Raises:
        StoreConfigError: the database's driver is not installed.
    """
    if not _is_sqlite(url):
        try:
            return create_async_engine(
                url,
                pool_pre_ping=True,  # replaces connections of a server that was restarted
                pool_size=connections,
                max_overflow=0,
                connect_args={"connect_timeout": _CONNECT_TIMEOUT_S},
                hide_parameters=True,  # errors are logged, and parameters hold message text
            )
        except ImportError as error:
            shown = url.render_as_string(hide_password=True)
            allowed = f"one whose driver is installed; {error.name} comes with the extra [postgres]"
            raise StoreConfigError(shown, allowed) from error
    return _sqlite(url, begin="BEGIN IMMEDIATE", connections=1)


def _without_detail(error: sa.exc.SQLAlchemyError) -> str:
    """The error text without the rows quoted by Postgres, as these hold message text."""
    return " ".join(line for line in str(error).splitlines() if not line.startswith("DETAIL:"))


def _is_deadlock(error: BaseException | None) -> bool:
    """Whether Postgres rolled the transaction back to resolve a deadlock."""
    return isinstance(error, sa.exc.DBAPIError) and (
        getattr(error.orig, "sqlstate", None) == _DEADLOCK
    )


def _sqlite_reader(url: URL) -> AsyncEngine:
    return _sqlite(url, begin="BEGIN DEFERRED", connections=READERS, cache_kib=_READER_CACHE_KIB)


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _limit_lock_wait(connection: sa.Connection) -> None:
    """Set how long the next statement waits for the lock: less if it has waited in our queue.

    A change costs a statement, so short waits count as none.
    """
    lock_by = connection.get_execution_options().get(_LOCK_BY)
    left_s = LOCK_WAIT_S if lock_by is None else lock_by - time.monotonic()
    if left_s > LOCK_WAIT_S - _SHORT_QUEUE_S:
        left_s = LOCK_WAIT_S
    wait_ms = max(0, round(left_s * 1000))
    if connection.info[_WAIT_MS] != wait_ms:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={wait_ms}")
        connection.info[_WAIT_MS] = wait_ms


def _sqlite(
    url: URL, *, begin: str, connections: int, cache_kib: int = _WRITER_CACHE_KIB
) -> AsyncEngine:
    engine = create_async_engine(
        url,
        poolclass=sa.AsyncAdaptedQueuePool,
        pool_size=connections,
        max_overflow=0,
        hide_parameters=True,  # errors are logged, and parameters hold message text
    )

    def prepare(connection: Any, record: Any) -> None:
        record.info[_WAIT_MS] = round(LOCK_WAIT_S * 1000)
        connection.isolation_level = None  # else the driver begins transactions by its own rules
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout={record.info[_WAIT_MS]}",  # first: the next one needs the lock
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "foreign_keys=ON",
            f"cache_size=-{cache_kib}",  # KiB; by default 2000
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def start(connection: sa.Connection) -> None:
        _limit_lock_wait(connection)
        connection.exec_driver_sql(begin)

    sa.event.listen(engine.sync_engine, "connect", prepare)
    sa.event.listen(engine.sync_engine, "begin", start)
    return engine
