"""This server among others on one database: its lease, and sessions taken over by others."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from sessiond.sessions.expiry_clock import ExpiryClock
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSession
from sessiond.sessions.parts import SessionDeps
from sessiond.sessions.pending_endings import PendingEndings
from sessiond.sessions.retention import Retention
from sessiond.store.errors import StoreError

Item = TypeVar("Item")


class Sweep(Generic[Item]):
    """Each round has what the table had when the round began, each once, in its order."""

    def __init__(self, table: Callable[[], Iterable[Item]]) -> None:
        self._table = table
        self._left: list[Item] = []

    def next(self, count: int) -> list[Item]:
        """The next of this round, `count` at most; of a new round when it has ended."""
        if not self._left:
            self._left = list(self._table())[::-1]
        some = self._left[-count:][::-1]
        del self._left[-count:]
        return some


logger = logging.getLogger(__name__)

_LOOKED_AT = 1000  # sessions per heartbeat whose ownership is checked
_BEATS_OF_A_LEASE = 3  # so that a late heartbeat or a short failure does not end it


class Replica:
    """Owns the task that renews the lease."""

    def __init__(self, deps: SessionDeps, *, retention: Retention) -> None:
        self._pending_endings = deps.pending_endings
        self._store = deps.store
        self._sessions = deps.sessions
        self._round = Sweep(lambda: deps.sessions)
        self._retention = retention
        self._heartbeat_s = deps.limits.heartbeat_s
        self._lease_s = lease_s(deps.limits)
        self._clock = deps.clock
        self._dead_by = ExpiryClock(deps.clock, deps.ticks, settle_s=lease_s(deps.limits))
        self._task: asyncio.Task[None] | None = None

    @property
    def database_failure(self) -> str | None:
        """Why the database can't be used; None: it can, as far as is known."""
        return self._store.failure

    @property
    def pending_endings(self) -> PendingEndings:
        """Ends of turns that the database has not taken yet."""
        return self._pending_endings

    async def start(self) -> None:
        """Come to life; mark the turns that nobody runs any more as failed.

        Raises:
            StoreError: the database can't be used.
        """
        now = self._clock()
        await self._store.membership.register(now, self._lease_end(now))
        await self._store.fail_running(now)
        self._task = asyncio.create_task(self._live_on())

    async def stop(self) -> None:
        """End, so that others can go on with the sessions at once."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._store.membership.resign()
        except StoreError as error:
            logger.warning("the lease was not released and will expire: %s", error)

    async def beat(self) -> None:
        """Renew the lease, store what could not be, and give up what is no longer ours.

        Raises:
            StoreError: the database can't be used.
        """
        now = self._clock()
        failed = await self._store.membership.renew(
            now, self._lease_end(now), dead_by=self._dead_by()
        )
        if failed:
            logger.warning("%d turns of dead servers were marked as failed", failed)
        await self._pending_endings.store()
        await self._give_up_taken()

    async def _live_on(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            was_well = self._store.failure is None
            try:
                await self.beat()
            except StoreError as error:
                if was_well:
                    logger.warning("the database can't be used: %s", error)
            except Exception:
                logger.exception("the heartbeat failed; it continues")
            else:
                if not was_well:
                    logger.warning("the database can be used again")

    async def _give_up_taken(self) -> None:
        """Give back the KV of sessions that go on elsewhere, or are closed, some with each beat.

        Only their memory waits for this: a request that adds to such a session notices by itself.
        """
        some = self._round.next(_LOOKED_AT)
        epochs = {str(live.id): live.epoch for live in some if _is_idle(live)}
        if not epochs:
            return
        for session_id in await self._store.membership.taken(list(epochs)):
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
