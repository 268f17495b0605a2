"""Cleanup after disconnects and on a timer. Asyncio thread only."""

import asyncio
import logging

from sessiond.facts import AttachmentId, Census
from sessiond.sessions.bound import BoundTurn
from sessiond.sessions.calm_clock import CalmClock
from sessiond.sessions.conversations import Conversations
from sessiond.sessions.live import LiveSession
from sessiond.sessions.parts import Parts
from sessiond.sessions.placing import Placer
from sessiond.sessions.repeats import Repeats
from sessiond.sessions.retention import Retention
from sessiond.sessions.runner import TurnRunner

logger = logging.getLogger(__name__)

_TTL_EVERY_S = 60.0
_AT_A_TIME = 64  # sessions of one socket; other turns run in between


class Housekeeping:
    """Cancels turns and frees KV of unheld sessions; expires kept events and keys."""

    def __init__(  # noqa: PLR0913 -- what there is to be kept in order, each by its name
        self,
        parts: Parts,
        *,
        placer: Placer,
        runner: TurnRunner,
        retention: Retention,
        repeats: Repeats,
        conversations: Conversations,
    ) -> None:
        self._store = parts.store
        self._sessions = parts.sessions
        self._limits = parts.limits
        self._clock = parts.clock
        self._ticks = parts.ticks
        self._placer = placer
        self._runner = runner
        self._retention = retention
        self._repeats = repeats
        self._conversations = conversations
        self._left: dict[AttachmentId, tuple[list[LiveSession], list[BoundTurn]]] = {}
        self._ttl_due_at = 0.0
        self._abandoned_by = CalmClock(parts.clock, parts.ticks, calm_s=parts.limits.session_ttl_s)

    def leave(self, attachment: AttachmentId) -> None:
        """Handle a disconnect in the engine at once, before anything is awaited or stored.

        Turns of sessions that no other socket holds are cancelled and rolled back, and their KV
        is freed; background turns continue. `detach` does the rest. A repeated call before that
        (from the reader and the writer) has no effect.
        """
        if attachment in self._left:
            return
        freed = self._retention.leave(attachment)
        freed_ids = {live.id for live in freed}
        turns = [bound for bound in self._runner.bound_turns() if bound.live.id in freed_ids]
        left = [one for one in turns if one.attachment is not None and not one.request.background]
        staying = {bound.live.id for bound in turns if bound not in left}
        now = [live for live in freed if not live.seat.is_taken][:_AT_A_TIME]
        now_ids = {live.id for live in now}
        later = [live for live in freed if live.id not in now_ids]
        self._left[attachment] = (later, left)
        for bound in left:
            self._runner.drop(bound)
            bound.stop(keep=False, reason="disconnected")
        for live in now:
            self._retention.settle(live, attachment)
        for live in later:
            if live.seat.is_taken and live.id not in staying:
                self._retention.give_back_early(live)

    async def detach(self, attachment: AttachmentId) -> None:
        """Wait until the turns of a closed socket have ended, then settle its sessions."""
        if attachment not in self._left:
            self.leave(attachment)
        later, left = self._left.pop(attachment)
        # a turn that a hanging engine does not end settles its session itself, when it ends
        await self._runner.ended(left, self._limits.cancel_timeout_s)
        for start in range(0, len(later), _AT_A_TIME):
            await asyncio.sleep(0)  # `leave` has just handled a batch
            for live in later[start : start + _AT_A_TIME]:
                # it may have been unloaded and loaded again for another client
                if self._sessions.get(live.id) is live and not live.seat.is_taken:
                    self._retention.settle(live, attachment)
        await self._erase_dead()

    def census(self) -> Census:
        """Counts of what is kept in memory."""
        limits, replays = self._limits, self._runner.replays
        return Census(
            sessions_in_memory=len(self._sessions),
            cold=self._retention.cold_count,
            max_cold=limits.max_cold_contexts,
            turns=len(self._runner.bound_turns()),
            replays=len(replays),
            replay_bytes=replays.size_bytes,
            max_replay_bytes=limits.replay_memory_bytes,
            session_ttl_s=limits.session_ttl_s,
        )

    async def run(self) -> None:
        """Reap on a timer until cancelled."""
        while True:
            await asyncio.sleep(self._limits.reap_every_s)
            try:
                self._retention.reap()
                self._runner.replays.reap(self._ticks())
                await self._erase_dead()
                await self._placer.unerased.settle()
                await self._repeats.reap()
                await self._end_abandoned()
            except Exception:
                logger.exception("the reaper failed; it continues")

    async def _end_abandoned(self) -> None:
        ticks = self._ticks()
        if self._limits.session_ttl_s and ticks >= self._ttl_due_at:
            before = self._abandoned_by() - self._limits.session_ttl_s
            ended = await self._conversations.close_abandoned(before)
            self._ttl_due_at = ticks if ended else ticks + _TTL_EVERY_S
            if ended:
                logger.info("%d abandoned sessions were deleted", ended)

    async def _erase_dead(self) -> None:
        for live in self._retention.take_dead():
            self._runner.replays.forget_session(live.id)
            await self._placer.erase(live)
            await self._store.close_session(live.user_id, live.id, self._clock())
