"""Summary look-ahead for idle sessions. Stateless. Asyncio thread only."""

import logging

from sessiond.sessions.compaction import Compaction
from sessiond.sessions.planning import Planner
from sessiond.sessions.turn import Turn

logger = logging.getLogger(__name__)


class Foresight:
    """Runs after a turn is committed, before its turn lock is released."""

    def __init__(self, *, planner: Planner, compaction: Compaction) -> None:
        self._planner = planner
        self._compaction = compaction

    async def look(self, turn: Turn) -> None:
        """Start a summary if a next turn like this one will need it."""
        live, request = turn.bound.live, turn.bound.request
        try:
            seen = await self._planner.foresee(live, request, input_tokens=len(turn.plan.input_ids))
            if seen is not None:
                await self._compaction.prepare(live, *seen)
        except Exception:  # the turn is stored; its result must not change
            logger.exception("summary look-ahead of session %s failed", live.id)
