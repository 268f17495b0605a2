"""What becomes of one turn, from who drives it to who reads it. Asyncio thread only."""

import asyncio
from collections import deque

from sessiond.facts import TextDelta, TurnFact, TurnFinished


class FactStream:
    """Bounded by what it holds: waiting deltas merge, and of the others there are a handful."""

    def __init__(self) -> None:
        self._facts: deque[TurnFact] = deque()
        self._filled = asyncio.Event()
        self._given: TurnFact | None = None

    def put(self, fact: TurnFact) -> None:
        """Append a fact; never waits for the reader."""
        last = self._facts[-1] if self._facts else None
        if isinstance(fact, TextDelta) and isinstance(last, TextDelta):
            self._facts[-1] = TextDelta(text=last.text + fact.text)
        else:
            self._facts.append(fact)
        self._filled.set()

    def __aiter__(self) -> "FactStream":
        return self

    async def __anext__(self) -> TurnFact:
        if isinstance(self._given, TurnFinished):
            raise StopAsyncIteration
        await self._filled.wait()
        self._given = self._facts.popleft()
        if not self._facts:
            self._filled.clear()
        return self._given
