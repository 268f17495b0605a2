"""What goes wrong: each fault lasts for a moment, and is over when its function returns."""

import asyncio
import contextlib
import logging
import os
import random
import resource
import signal
import socket
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from engine.kv.tiers.disk import FILE_NAME
from sessiond.store.errors import StoreError
from tests.chaos.engine import STEP_FAULTS
from tests.chaos.stack import DB_TIMEOUT_S, ChaosStack

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from tests.store.postgres import PostgresServer

Fault = Callable[[ChaosStack, random.Random], Awaitable[None]]

_PEERS = 600
_JUMPS_S = (365 * 86_400.0, 3600.0, 20.0)


# --- the engine's process ------------------------------------------------------------------------


async def engine_killed(stack: ChaosStack, _chance: random.Random) -> None:
    await stack.engine.ready()
    with contextlib.suppress(ProcessLookupError):
        os.kill(stack.engine.pid, signal.SIGKILL)


async def engine_stopped(stack: ChaosStack, _chance: random.Random) -> None:
    """The watchdog finds it."""
    await stack.engine.ready()
    hangs = stack.engine.hangs
    with contextlib.suppress(ProcessLookupError):
        os.kill(stack.engine.pid, signal.SIGSTOP)
    await _until(lambda: stack.engine.hangs > hangs)


def ordered(kind: str) -> Fault:
    """A fault that the engine's process does to itself: it is over when that has met it."""

    async def give(stack: ChaosStack, _chance: random.Random) -> None:
        stack.orders.give(kind)
        await _until(lambda: not stack.orders.waiting(kind))

    return give


# --- the disk tier's file ------------------------------------------------------------------------


async def tier_corrupted(stack: ChaosStack, chance: random.Random) -> None:
    """Bytes all over the file are others than were written."""
    with _tier_file(stack).open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for _ in range(max(1, size // 4096)):
            file.seek(chance.randrange(max(1, size)))
            file.write(chance.randbytes(64))


async def tier_cut(stack: ChaosStack, chance: random.Random) -> None:
    """The file has lost its end."""
    path = _tier_file(stack)
    os.truncate(path, chance.randint(0, path.stat().st_size))


def _tier_file(stack: ChaosStack) -> Path:
    return stack.folder / "kv" / FILE_NAME


# --- the database --------------------------------------------------------------------------------


async def sql_locked(stack: ChaosStack, chance: random.Random) -> None:
    """Another program holds the lock for longer than a turn takes."""
    async with _lock(stack):
        await asyncio.sleep(chance.uniform(0.2, 1.0))


async def sql_slow(stack: ChaosStack, chance: random.Random) -> None:
    """Another program takes the lock again and again."""
    for _ in range(4):
        async with _lock(stack):
            await asyncio.sleep(chance.uniform(0.01, 0.1))
        await asyncio.sleep(0.01)


async def sql_full(stack: ChaosStack, chance: random.Random) -> None:
    await _limit_pages(stack, 1)
    await asyncio.sleep(chance.uniform(0.2, 1.0))
    await _limit_pages(stack, 2**30)


async def _limit_pages(stack: ChaosStack, pages: int) -> None:
    async def limit(connection) -> None:
        await connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    await stack.store.database.write(limit)


@contextlib.asynccontextmanager
async def _lock(stack: ChaosStack) -> AsyncIterator[None]:
    path = stack.url.partition(":///")[2]
    connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
    begun = asyncio.ensure_future(asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE"))
    try:
        await asyncio.shield(begun)
        yield
        connection.execute("ROLLBACK")
    finally:
        await asyncio.wait([begun])  # SQLite crashes if a connection is closed that a thread is in
        connection.close()


def postgres_faults(server: "PostgresServer") -> dict[str, Fault]:
    """Faults of a Postgres that is the run's own."""

    async def hangs(_stack: ChaosStack, chance: random.Random) -> None:
        with server.frozen():
            await asyncio.sleep(chance.uniform(0.5, 2 * DB_TIMEOUT_S))

    async def crashes(_stack: ChaosStack, chance: random.Random) -> None:
        await asyncio.to_thread(server.stop, at_once=True)
        await asyncio.sleep(chance.uniform(0.0, 0.5))
        await asyncio.to_thread(server.start)

    async def locked(stack: ChaosStack, chance: random.Random) -> None:
        """Another program holds a table for longer than is waited for."""
        async with stack.store.database.engines[0].begin() as connection:
            await connection.exec_driver_sql("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE")
            await asyncio.sleep(chance.uniform(0.5, 2 * DB_TIMEOUT_S))

    return {"Postgres hangs": hangs, "Postgres crashes": crashes, "Postgres locked": locked}


# --- the machine ---------------------------------------------------------------------------------


async def clock_forward(stack: ChaosStack, chance: random.Random) -> None:
    await _jump(stack, chance.choice(_JUMPS_S))


async def clock_back(stack: ChaosStack, chance: random.Random) -> None:
    await _jump(stack, -chance.choice(_JUMPS_S))


async def _jump(stack: ChaosStack, seconds: float) -> None:
    before, stack.clock.ahead_s = stack.clock.ahead_s, stack.clock.ahead_s + seconds
    await asyncio.sleep(0.5)
    stack.clock.ahead_s = before


async def no_descriptors(_stack: ChaosStack, chance: random.Random) -> None:
    """No file, socket or process can be opened, by the server nor by its clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(number) for number in os.listdir("/proc/self/fd"))  # noqa: PTH208 -- numbers
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, highest + 1), hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        await asyncio.sleep(chance.uniform(0.2, 1.0))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in taken:
            os.close(number)


async def silent_peers(stack: ChaosStack, chance: random.Random) -> None:
    """More connections than one address may have, and none of them says a word."""
    peers: list[socket.socket] = []
    try:
        with contextlib.suppress(OSError):  # out of descriptors
            for _ in range(_PEERS):
                peer = socket.socket()
                peers.append(peer)
                peer.setblocking(False)
                peer.connect_ex(("127.0.0.1", stack.served.port))
        await asyncio.sleep(chance.uniform(0.2, 1.0))
    finally:
        for peer in peers:
            peer.close()


async def when_possible(fault: Fault, stack: ChaosStack, chance: random.Random) -> None:
    """Do a fault; where another has left it no descriptor, as soon as there is one."""
    while True:
        try:
            return await fault(stack, chance)
        except (OSError, sqlite3.OperationalError, StoreError, SQLAlchemyError) as error:
            log.info("a fault waits for another to end: %s", error)
            await asyncio.sleep(0.05)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not _holds(condition):  # noqa: ASYNC110 -- another process brings it about
            await asyncio.sleep(0.01)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except OSError:  # there is no descriptor to look with
        return False


ANYWHERE: dict[str, Fault] = {
    "engine killed": engine_killed,
    "engine stopped": engine_stopped,
    **{kind.replace("-", " "): ordered(kind) for kind in STEP_FAULTS},
    "disk tier full": ordered("tier-full"),
    "disk tier corrupted": tier_corrupted,
    "disk tier cut": tier_cut,
    "clock forward": clock_forward,
    "clock back": clock_back,
    "no descriptors": no_descriptors,
    "silent peers": silent_peers,
}
SQLITE: dict[str, Fault] = {
    "SQLite locked": sql_locked,
    "SQLite slow": sql_slow,
    "SQLite full": sql_full,
}
