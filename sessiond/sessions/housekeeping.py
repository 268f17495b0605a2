"""What is done when sockets leave, and on a timer. Asyncio thread only."""

import asyncio
import logging

from sessiond.facts import AttachmentId, Census
from sessiond.sessions.calm_clock import CalmClock
from sessiond.sessions.conversations import Conversations
from sessiond.sessions.parts import Parts
from sessiond.sessions.placing import Placer
from sessiond.sessions.repeats import Repeats
from sessiond.sessions.retention import Retention
from sessiond.sessions.runner import TurnRunner

logger = logging.getLogger(__name__)

_TTL_EVERY_S = 60.0
_AT_A_TIME = 64  # sessions of one socket: others' turns go on in between


class Housekeeping:
    """Cuts and releases what nobody holds; forgets what was kept for those that might return."""

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
        self._ttl_due_at = 0.0
        self._abandoned_by = CalmClock(parts.clock, parts.ticks, calm_s=parts.limits.session_ttl_s)

    async def detach(self, attachment: AttachmentId) -> None:
        """A socket left: sessions that no other holds are cancelled, rolled back and released.

        Turns in the background go on, and settle their session at their end.
        """
        freed = self._retention.leave(attachment)
        freed_ids = {live.id for live in freed}
        left = [
            bound
            for bound in self._runner.bound_turns()
            if bound.live.id in freed_ids
            and bound.attachment is not None
            and not bound.request.background
        ]
        for bound in left:
            self._runner.drop(bound)
            bound.stop(keep=False, reason="disconnected")
        # a turn that a hanging engine does not end settles its session itself, when it ends
        await self._runner.ended(left, self._limits.cancel_timeout_s)
        for start in range(0, len(freed), _AT_A_TIME):
            for live in freed[start : start + _AT_A_TIME]:
                if not live.seat.is_taken:
                    self._retention.settle(live, attachment)
            await asyncio.sleep(0)
        await self._erase_dead()

    def census(self) -> Census:
        """Count what is kept."""
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
        """Reap on a timer, for ever."""
        while True:
            await asyncio.sleep(self._limits.reap_every_s)
            try:
                self._retention.reap()
                self._runner.replays.reap(self._ticks())
                await self._erase_dead()
                await self._repeats.reap()
                await self._end_abandoned()
            except Exception:
                logger.exception("the reaper met a fault; it goes on")

    async def _end_abandoned(self) -> None:
        ticks = self._ticks()
        if self._limits.session_ttl_s and ticks >= self._ttl_due_at:
            before = self._abandoned_by() - self._limits.session_ttl_s
            ended = await self._conversations.close_abandoned(before)
            self._ttl_due_at = ticks if ended else ticks + _TTL_EVERY_S
            if ended:
                logger.info("%d sessions that nobody came back to were deleted", ended)

    async def _erase_dead(self) -> None:
        for live in self._retention.take_dead():
            self._runner.replays.forget_session(live.id)
            await self._placer.erase(live)
            await self._store.close_session(live.user_id, live.id, self._clock())
