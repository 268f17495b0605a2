"""What is done when sockets leave, and on a timer. Asyncio thread only."""

import asyncio
import logging

from sessiond.facts import AttachmentId
from sessiond.sessions.parts import Parts
from sessiond.sessions.placing import Placer
from sessiond.sessions.repeats import Repeats
from sessiond.sessions.retention import Retention
from sessiond.sessions.runner import TurnRunner

logger = logging.getLogger(__name__)


class Housekeeping:
    """Cuts and releases what nobody holds; forgets what was kept for those that might return."""

    def __init__(
        self,
        parts: Parts,
        *,
        placer: Placer,
        runner: TurnRunner,
        retention: Retention,
        repeats: Repeats,
    ) -> None:
        self._store = parts.store
        self._limits = parts.limits
        self._clock = parts.clock
        self._placer = placer
        self._runner = runner
        self._retention = retention
        self._repeats = repeats

    async def detach(self, attachment: AttachmentId) -> None:
        """A socket left: sessions that no other holds are cancelled, rolled back and released.

        Turns in the background go on, and settle their session at their end.
        """
        freed = self._retention.leave(attachment)
        left = [
            bound
            for bound in self._runner.bound_turns()
            if bound.live in freed and bound.attachment is not None and not bound.request.background
        ]
        for bound in left:
            self._runner.drop(bound)
            bound.stop(keep=False, reason="disconnected")
        # a turn that a hanging engine does not end settles its session itself, when it ends
        await self._runner.ended(left, self._limits.cancel_timeout_s)
        for live in freed:
            if not live.seat.is_taken:
                self._retention.settle(live, attachment)
        await self._erase_dead()

    async def run(self) -> None:
        """Reap on a timer, for ever."""
        while True:
            await asyncio.sleep(self._limits.reap_every_s)
            try:
                self._retention.reap()
                self._runner.replays.reap(self._clock())
                await self._erase_dead()
                await self._repeats.reap()
            except Exception:
                logger.exception("the reaper met a fault; it goes on")

    async def _erase_dead(self) -> None:
        for live in self._retention.take_dead():
            self._runner.replays.forget_session(live.id)
            await self._placer.erase(live)
            await self._store.close_session(live.user_id, live.id, self._clock())
