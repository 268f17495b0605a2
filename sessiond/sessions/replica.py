"""This replica on a shared database: its lease, and sessions taken by other replicas."""

import asyncio
import logging

from sessiond.sessions.calm_clock import CalmClock
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSession
from sessiond.sessions.parts import Parts
from sessiond.sessions.retention import Retention
from sessiond.sessions.rounds import Rounds
from sessiond.store.errors import StoreError

logger = logging.getLogger(__name__)

_LOOKED_AT = 1000  # sessions per heartbeat whose ownership is checked
_BEATS_OF_A_LEASE = 3  # so that a late heartbeat or a short failure does not end it


class Replica:
    """Owns the task that renews the lease."""

    def __init__(self, parts: Parts, *, retention: Retention) -> None:
        self._unstored = parts.unstored
        self._store = parts.store
        self._sessions = parts.sessions
        self._round = Rounds(lambda: parts.sessions)
        self._retention = retention
        self._heartbeat_s = parts.limits.heartbeat_s
        self._lease_s = lease_s(parts.limits)
        self._clock = parts.clock
        self._dead_by = CalmClock(parts.clock, parts.ticks, calm_s=lease_s(parts.limits))
        self._task: asyncio.Task[None] | None = None

    @property
    def database_failure(self) -> str | None:
        """Why the database can't be used; None: it can, as far as is known."""
        return self._store.failure

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
        await self._unstored.store()
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

        Only their memory waits for this: whoever adds to a session finds out by itself.
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
    return live.stored and live.placement is not None and not live.seat.is_taken
