"""Meters the time that users' KV is on the device. Asyncio thread only."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Sequence

from engine.ids import SessionId
from engine.questions import GetResidency, Residency
from sessiond.errors import RequestError
from sessiond.sessions.live import LiveSession
from sessiond.sessions.parts import Parts
from sessiond.sessions.questions import ask_in_time

logger = logging.getLogger(__name__)

_AT_A_TIME = 256  # sessions: neither the engine nor this loop is held up by all of them


class ResidencyMeter:
    """Looks at all sessions every `residency_every_s`, some at a time.

    What a session holds counts for the whole time since the look before.
    """

    def __init__(self, parts: Parts) -> None:
        self._engine = parts.engine
        self._store = parts.store
        self._sessions = parts.sessions
        self._limits = parts.limits
        self._ticks = parts.ticks
        self._looked_at = parts.ticks()
        self._timer: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._timer = asyncio.create_task(self._look_always())

    async def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    async def look(self) -> None:
        """Charge what is held now for the time since the last look, if that is long ago."""
        ticks = self._ticks()
        since_s = ticks - self._looked_at
        if since_s < self._limits.residency_every_s:
            return
        self._looked_at = ticks
        byte_seconds: defaultdict[str, float] = defaultdict(float)
        # an engine that is away holds nothing; one that hangs is asked again
        with contextlib.suppress(RequestError):
            await self._look_at_all(since_s, byte_seconds)
        if byte_seconds:
            await self._store.quotas.add_residency(byte_seconds)

    async def _look_at_all(self, since_s: float, byte_seconds: defaultdict[str, float]) -> None:
        lives = tuple(self._sessions)
        for start in range(0, len(lives), _AT_A_TIME):
            if not self._engine.available:
                return
            held = await self._held(lives[start : start + _AT_A_TIME])
            for session, kv_bytes in held.items():
                live = self._sessions.get(session)
                if live is not None:
                    byte_seconds[live.user_id] += kv_bytes * since_s
            await asyncio.sleep(0)

    async def _held(self, lives: Sequence[LiveSession]) -> dict[SessionId, float]:
        epoch = self._engine.epoch
        wanted = [live.id for live in lives if live.stored and live.is_placed(epoch)]
        held: dict[SessionId, float] = {}
        while wanted:
            question = GetResidency(sessions=tuple(wanted))
            answer = await ask_in_time(self._engine, question, self._limits.ask_timeout_s)
            if not isinstance(answer, Residency):
                raise TypeError(answer)
            held |= answer.kv_bytes
            wanted = wanted[answer.looked_at :]
        return held

    async def _look_always(self) -> None:
        while True:
            await asyncio.sleep(self._limits.reap_every_s)
            try:
                await self.look()
            except Exception:
                logger.exception("residency could not be measured; retrying")
