"""Results of turns that could not be stored, kept for retry. Asyncio thread only."""

import logging
from collections import deque

from sessiond.store.errors import StoreError
from sessiond.store.records import AbortedTurn
from sessiond.store.store import Store

logger = logging.getLogger(__name__)

_MOST = 4096  # rows beyond it stay `running`, in no context, until the next start marks them


class PendingEndings:
    """Keeps aborted turns whose row is still `running`, which blocks other servers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: deque[AbortedTurn] = deque(maxlen=_MOST)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: AbortedTurn) -> None:
        """Keep a result for retry."""
        self._rows.append(row)

    async def store(self) -> None:
        """Store the kept results, oldest first, until one fails."""
        while self._rows:
            row = self._rows[0]
            try:
                await self._store.abort_turn(row)
            except StoreError as error:
                if self._store.failure is not None:
                    return
                logger.info("the end of turn %s could not be stored: %s", row.id, error)
            if self._rows and self._rows[0] is row:
                self._rows.popleft()
