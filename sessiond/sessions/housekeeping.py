"""Cleanup after disconnects and on a timer. Asyncio thread only."""

import asyncio
import logging
from collections.abc import Callable

from sessiond.domain import AttachmentId, ServiceStats
from sessiond.sessions.conversations import Conversations
from sessiond.sessions.engine_sync import EngineSync
from sessiond.sessions.expiry_clock import ExpiryClock
from sessiond.sessions.idempotency import IdempotentRequests
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.live_session import LiveSession
from sessiond.sessions.retention import Retention
from sessiond.sessions.run import TurnRunner
from sessiond.sessions.turn import Turn
from sessiond.store.store import Store

logger = logging.getLogger(__name__)

_TTL_EVERY_S = 60.0
_AT_A_TIME = 64  # sessions of one socket per batch; other turns run in between


class Housekeeping:
    """Cancels turns and frees KV of unheld sessions; expires event logs and idempotency keys."""

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        store: Store,
        sessions: LiveSessions,
        limits: ServiceLimits,
        clock: Callable[[], float],
        ticks: Callable[[], float],
        engine_sync: EngineSync,
        runner: TurnRunner,
        retention: Retention,
        idempotency: IdempotentRequests,
        conversations: Conversations,
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._limits = limits
        self._clock = clock
        self._ticks = ticks
        self._engine_sync, self._pending_deletes = engine_sync, engine_sync.pending_deletes
        self._runner, self._replays = runner, runner.replays
        self._retention = retention
        self._idempotency = idempotency
        self._conversations = conversations
        self._left: dict[AttachmentId, tuple[list[LiveSession], list[Turn]]] = {}
        self._ttl_due_at = 0.0
        self._reaper: asyncio.Task[None] | None = None
        self._abandoned_by = ExpiryClock(clock, ticks, settle_s=limits.session_ttl_s)

    @property
    def owed_erasures(self) -> int:
        """Sessions whose KV a lost engine has left on disk, to be erased."""
        return len(self._pending_deletes)

    @property
    def ttl_due_at(self) -> float:
        """When abandoned sessions are looked for next, in seconds of `ticks`."""
        return self._ttl_due_at

    def start(self) -> None:
        """Start the reaper."""
        self._reaper = asyncio.create_task(self._reap_always())

    async def stop(self) -> None:
        """Stop the reaper."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)

    def attach(self, attachment: AttachmentId) -> None:
        """Add an open socket."""
        self._retention.attach(attachment)

    def leave(self, attachment: AttachmentId) -> None:
        """Handle a disconnect in the engine at once, without an await or a write.

        Turns of sessions that no other socket holds are cancelled and rolled back, and their KV is
        freed; background turns continue. `detach` does the rest. A second call before that, as the
        socket's reader and writer both call it, has no effect.
        """
        if attachment in self._left:
            return
        freed = self._retention.leave(attachment)
        freed_ids = {live.id for live in freed}
        turns = [turn for turn in self._runner.bound_turns() if turn.live.id in freed_ids]
        left = [one for one in turns if one.attachment is not None and not one.request.background]
        staying = {turn.live.id for turn in turns if turn not in left}
        now = [live for live in freed if not live.turn_lock.is_locked][:_AT_A_TIME]
        now_ids = {live.id for live in now}
        later = [live for live in freed if live.id not in now_ids]
        self._left[attachment] = (later, left)
        for turn in left:
            self._runner.drop(turn)
            turn.cancel(keep=False, reason="disconnected")
        for live in now:
            self._retention.settle(live, attachment)
        for live in later:
            if live.turn_lock.is_locked and live.id not in staying:
                self._retention.release_early(live)

    async def detach(self, attachment: AttachmentId) -> None:
        """Wait until the turns of a closed socket have ended, then settle its sessions."""
        if attachment not in self._left:
            self.leave(attachment)
        later, left = self._left.pop(attachment)
        # if a hanging engine does not end a turn in time, the turn settles its session at its end
        await self._runner.ended(left, self._limits.cancel_timeout_s)
        for start in range(0, len(later), _AT_A_TIME):
            await asyncio.sleep(0)  # before each batch: `leave` has just handled the first
            for live in later[start : start + _AT_A_TIME]:
                # it may have been unloaded and loaded again for another client
                if self._sessions.get(live.id) is live and not live.turn_lock.is_locked:
                    self._retention.settle(live, attachment)
        await self._delete_abandoned()

    def service_stats(self) -> ServiceStats:
        """Counts of sessions, turns and events in memory."""
        limits, replays = self._limits, self._replays
        return ServiceStats(
            sessions_in_memory=len(self._sessions),
            cold=self._retention.cold_count,
            max_cold=limits.max_cold_contexts,
            turns=len(self._runner.bound_turns()),
            replays=len(replays),
            replay_bytes=replays.size_bytes,
            max_replay_bytes=limits.replay_memory_bytes,
            session_ttl_s=limits.session_ttl_s,
        )

    async def _reap_always(self) -> None:
        while True:
            await asyncio.sleep(self._limits.reap_every_s)
            try:
                self._retention.reap()
                self._replays.reap(self._ticks())
                await self._delete_abandoned()
                await self._pending_deletes.settle()
                await self._idempotency.reap()
                await self.end_abandoned()
            except Exception:
                logger.exception("deleting abandoned sessions failed; it is retried")

    async def end_abandoned(self) -> None:
        """Delete sessions that nobody came back to for `session_ttl_s`, once a minute at most."""
        ticks = self._ticks()
        if self._limits.session_ttl_s and ticks >= self._ttl_due_at:
            before = self._abandoned_by() - self._limits.session_ttl_s
            closed = await self._conversations.close_abandoned(before)
            self._ttl_due_at = ticks if closed else ticks + _TTL_EVERY_S
            if closed:
                logger.info("%d abandoned sessions were deleted", closed)

    async def _delete_abandoned(self) -> None:
        for live in self._retention.take_abandoned():
            self._replays.forget_session(live.id)
            await self._engine_sync.erase(live)
            await self._store.close_session(live.user_id, live.id, self._clock())
