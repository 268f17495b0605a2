"""Event log of one turn, from its producer to its readers. Asyncio thread only."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sessiond.facts import TextDelta, TurnFact, TurnFinished

FACT_BYTES = 256  # approximate size of an event without its text


class FactsLostError(Exception):
    """A slow reader's next event has been dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFacts:
    """Summary of the dropped events: text and others."""

    deltas: int = 0
    others: int = 0
    text: str = ""

    def __bool__(self) -> bool:
        """Whether any event was dropped."""
        return bool(self.deltas or self.others)

    def and_then(self, fact: TurnFact) -> "SkippedFacts":
        """The summary with one more event."""
        if isinstance(fact, TextDelta):
            text = self.text + fact.text
            return SkippedFacts(deltas=self.deltas + 1, others=self.others, text=text)
        return SkippedFacts(deltas=self.deltas, others=self.others + 1, text=self.text)


class FactLog:
    """All readers get the same events in the same order, so event numbers agree.

    Deltas not yet read by any reader are merged. Of the events already read, the newest are kept,
    up to `max_facts` and `max_bytes`.
    """

    def __init__(self, *, max_facts: int = 4096, max_bytes: int = 2**20) -> None:
        self._max_facts = max_facts
        self._max_bytes = max_bytes
        self._facts: deque[TurnFact] = deque()
        self._first = 0  # the number of the oldest that is kept
        self._given = 0  # events read by at least one reader
        self._bytes = 0
        self._filled = asyncio.Event()
        self.skipped = SkippedFacts()

    @property
    def size_bytes(self) -> int:
        """Approximate size of the kept events."""
        return self._bytes + len(self.skipped.text)

    def put(self, fact: TurnFact) -> None:
        """Append an event; never waits for a reader."""
        last = self._facts[-1] if self._end > self._given else None
        if isinstance(fact, TextDelta) and isinstance(last, TextDelta):
            self._facts[-1] = TextDelta(text=last.text + fact.text)
            self._bytes += len(fact.text)
        else:
            self._facts.append(fact)
            self._bytes += _size(fact)
        self._trim()
        self._filled.set()

    async def read(self) -> AsyncIterator[TurnFact]:
        """Yield the events from the oldest kept one to the last, as they arrive.

        Raises:
            FactsLostError: the reader was too slow.
        """
        at = self._first
        while True:
            while at == self._end:
                self._filled.clear()
                await self._filled.wait()
            if at < self._first:
                raise FactsLostError
            fact = self._facts[at - self._first]
            at += 1
            self._given = max(self._given, at)
            yield fact
            if isinstance(fact, TurnFinished):
                return

    @property
    def _end(self) -> int:
        return self._first + len(self._facts)

    def _trim(self) -> None:
        """Drop the oldest events that were read."""
        while self._first < self._given and (
            len(self._facts) > self._max_facts or self._bytes > self._max_bytes
        ):
            fact = self._facts.popleft()
            self._first += 1
            self._bytes -= _size(fact)
            self.skipped = self.skipped.and_then(fact)


def _size(fact: TurnFact) -> int:
    text = fact.text if isinstance(fact, TextDelta | TurnFinished) else ""
    return FACT_BYTES + len(text)
