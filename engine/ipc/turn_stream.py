"""Bounded event stream of one turn, from the engine to its reader. Asyncio thread only."""

import asyncio
from collections import deque
from typing import assert_never

from engine.ids import TurnId
from engine.ipc.messages import (
    TurnDegraded,
    TurnDelta,
    TurnDone,
    TurnEnding,
    TurnEvent,
    TurnFailed,
    TurnIncomplete,
    TurnStarted,
    TurnWaiting,
)


class TurnStream:
    """Events of one turn, for one reader.

    Bounded by construction: at most a start, one event per degradation step, the last
    `TurnWaiting`, one delta and one ending are queued. Deltas that accumulate for a slow reader are
    merged into one, and a reply has at most `max_output_tokens`.
    """

    def __init__(self, turn: TurnId) -> None:
        self._turn = turn
        self._started: TurnStarted | None = None
        self._waiting: TurnWaiting | None = None
        self._degraded: deque[TurnDegraded] = deque()
        self._texts: list[str] = []
        self._tokens = 0
        self._ending: TurnEnding | None = None
        self._exhausted = False
        self._arrived = asyncio.Event()

    @property
    def turn(self) -> TurnId:
        """Id of the turn that these events belong to."""
        return self._turn

    def push(self, event: TurnEvent) -> None:
        """Add the next event. Never waits."""
        match event:
            case TurnStarted():
                self._started, self._waiting = event, None
            case TurnWaiting():
                self._waiting = event
            case TurnDegraded():
                self._degraded.append(event)
            case TurnDelta():
                self._texts.append(event.text)
                self._tokens += event.tokens
            case TurnDone() | TurnIncomplete() | TurnFailed():
                self._ending = event
            case _:
                assert_never(event)
        self._arrived.set()

    def __aiter__(self) -> "TurnStream":
        """Iterate once, by one task."""
        return self

    async def __anext__(self) -> TurnEvent:
        """Return the oldest waiting event; wait for one if there is none."""
        while (event := self._take()) is None:
            if self._exhausted:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return event

    def _take(self) -> TurnEvent | None:
        if (started := self._started) is not None:
            self._started = None
            return started
        if self._degraded:
            return self._degraded.popleft()
        if (waiting := self._waiting) is not None:
            self._waiting = None
            return waiting
        if self._texts:
            merged = TurnDelta(turn=self._turn, text="".join(self._texts), tokens=self._tokens)
            self._texts, self._tokens = [], 0
            return merged
        if (ending := self._ending) is not None:
            self._ending, self._exhausted = None, True
            return ending
        return None
