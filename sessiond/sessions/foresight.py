"""What a session's next turn will want, while it is idle. Knows no state. Asyncio thread only."""

import logging

from sessiond.sessions.compaction import Compaction
from sessiond.sessions.planning import Planner
from sessiond.sessions.turn import Turn

logger = logging.getLogger(__name__)


class Foresight:
    """Looks at a turn that its session has kept, while that is still held."""

    def __init__(self, *, planner: Planner, compaction: Compaction) -> None:
        self._planner = planner
        self._compaction = compaction

    async def look(self, turn: Turn) -> None:
        """Have a summary written if a next turn like this one will want it."""
        live, request = turn.bound.live, turn.bound.request
        try:
            seen = await self._planner.foresee(live, request, input_tokens=len(turn.plan.input_ids))
            if seen is not None:
                await self._compaction.prepare(live, *seen)
        except Exception:  # the turn has been stored, and is told so whatever comes next
            logger.exception("what session %s will want could not be foreseen", live.id)
