"""This replica's lease, and the sessions that other replicas took over. Asyncio thread only."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from sessiond.sessions.expiry_clock import ExpiryClock
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.live_session import LiveSession
from sessiond.sessions.pending_endings import PendingEndings
from sessiond.sessions.retention import Retention
from sessiond.store.errors import StoreError
from sessiond.store.store import Store

logger = logging.getLogger(__name__)

_CHECKED_PER_BEAT = 1000  # sessions per heartbeat whose ownership is checked
_BEATS_OF_A_LEASE = 3  # so that a late heartbeat or a short failure does not end it

Item = TypeVar("Item")


class Sweep(Generic[Item]):
    """Iterates over a changing table in batches, one snapshot per round, in the table's order."""

    def __init__(self, table: Callable[[], Iterable[Item]]) -> None:
        self._table = table
        self._left: list[Item] = []

    def next(self, count: int) -> list[Item]:
        """The next `count` items at most; a round that is used up is followed by a new one."""
        if not self._left:
            self._left = list(self._table())[::-1]
        some = self._left[-count:][::-1]
        del self._left[-count:]
        return some


class Replica:
    """Owns the task that renews the lease."""

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        store: Store,
        sessions: LiveSessions,
        pending_endings: PendingEndings,
        limits: ServiceLimits,
        clock: Callable[[], float],
        ticks: Callable[[], float],
        retention: Retention,
    ) -> None:
        self._pending_endings = pending_endings
        self._store, self._membership = store, store.membership
        self._sessions = sessions
        self._sweep = Sweep(lambda: sessions)
        self._retention = retention
        self._heartbeat_s = limits.heartbeat_s
        self._lease_s = lease_s(limits)
        self._clock = clock
        self._dead_by = ExpiryClock(clock, ticks, settle_s=lease_s(limits))
        self._task: asyncio.Task[None] | None = None

    @property
    def database_failure(self) -> str | None:
        """Why the database can't be used; None: no failure is known."""
        return self._store.failure

    @property
    def pending_endings(self) -> PendingEndings:
        """Ends of turns that the database has not taken yet."""
        return self._pending_endings

    async def start(self) -> None:
        """Register the lease; mark running turns of dead replicas as failed.

        Raises:
            StoreError: the database can't be used.
        """
        now = self._clock()
        await self._membership.register(now, self._lease_end(now))
        await self._store.fail_running(now)
        self._task = asyncio.create_task(self._beat_always())

    async def stop(self) -> None:
        """Release the lease, so that other replicas can continue the sessions at once."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._membership.resign()
        except StoreError as error:
            logger.warning("the lease could not be released and will expire: %s", error)

    async def beat(self) -> None:
        """Renew the lease, store pending endings, free KV of sessions that others took over.

        Raises:
            StoreError: the database can't be used.
        """
        now = self._clock()
        failed = await self._membership.renew(now, self._lease_end(now), dead_by=self._dead_by())
        if failed:
            logger.warning("%d turns of dead servers were marked as failed", failed)
        await self._pending_endings.store()
        await self._free_taken()

    async def _beat_always(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            was_usable = self._store.failure is None
            try:
                await self.beat()
            except StoreError as error:
                if was_usable:
                    logger.warning("the database is unavailable: %s", error)
            except Exception:
                logger.exception("the heartbeat failed; it is retried")
            else:
                if not was_usable:
                    logger.warning("the database is available again")

    async def _free_taken(self) -> None:
        """Free the KV of sessions that another replica owns or closed, one batch per heartbeat.

        This only frees memory: a commit to such a session is fenced off by its epoch.
        """
        some = self._sweep.next(_CHECKED_PER_BEAT)
        epochs = {str(live.id): live.epoch for live in some if _is_idle(live)}
        if not epochs:
            return
        for session_id in await self._membership.taken(list(epochs)):
            live = self._sessions.get(session_id)
            if live is not None and _is_idle(live) and live.epoch == epochs[session_id]:
                self._retention.forget(live)

    def _lease_end(self, now: float) -> float:
        return now + self._lease_s


def lease_s(limits: ServiceLimits) -> float:
    """Lifetime of a lease without a heartbeat."""
    return _BEATS_OF_A_LEASE * limits.heartbeat_s


def _is_idle(live: LiveSession) -> bool:
    return live.stored and live.residency is not None and not live.turn_lock.is_locked
