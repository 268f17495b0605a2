"""The one door to an engine, whether it is a thread, a child process or, later, a cluster."""

from collections.abc import AsyncIterator
from typing import Protocol

from engine.ids import TurnId
from engine.messages import CancelTurn, ContextCommand, EngineInfo, SubmitTurn, TurnEvent
from engine.questions import (
    Answer,
    AuditReport,
    ContextView,
    EngineStats,
    GetAudit,
    GetContext,
    GetPool,
    GetResidency,
    GetStats,
    PoolMap,
    Query,
    Residency,
)

__all__ = [
    "Answer",
    "AuditReport",
    "ContextCommand",
    "ContextView",
    "EngineClient",
    "EngineInfo",
    "EngineStats",
    "GetAudit",
    "GetContext",
    "GetPool",
    "GetResidency",
    "GetStats",
    "PoolMap",
    "Query",
    "Residency",
    "TurnEvent",
    "TurnEvents",
]


class TurnEvents(Protocol):
    """Events of one turn: `TurnStarted`, deltas, then exactly one ending, after which it stops.

    Bounded: a slow reader finds waiting deltas merged into one.
    """

    @property
    def turn(self) -> TurnId:
        """The turn that these events are about."""
        ...

    def __aiter__(self) -> AsyncIterator[TurnEvent]:
        """Iterate once, by one task."""
        ...


class EngineClient(Protocol):
    """Speaks to one engine. All methods are called from one asyncio loop.

    `epoch` starts at 1 and rises by one whenever the engine lost its memory. A context that was
    set under an older epoch is gone: set it again before submitting. Nothing can come between a
    look at `epoch`, `send` and `submit` that are made without awaiting.
    """

    @property
    def info(self) -> EngineInfo:
        """What the engine is.

        Raises:
            EngineUnavailableError: before `start` has returned.
        """
        ...

    @property
    def epoch(self) -> int:
        """How many times the engine has started."""
        ...

    @property
    def available(self) -> bool:
        """Whether commands are taken now."""
        ...

    @property
    def restarts(self) -> int:
        """How many times the engine was lost and started again."""
        ...

    @property
    def hangs(self) -> int:
        """How many of these losses were engines that hung and were killed."""
        ...

    async def start(self) -> None:
        """Start the engine and wait until it is ready."""
        ...

    async def ready(self) -> None:
        """Wait until commands are taken (again). Callers bound it with a timeout."""
        ...

    async def stop(self) -> None:
        """Stop the engine; running turns end in `TurnFailed`."""
        ...

    def send(self, command: ContextCommand) -> None:
        """Change a context. In order with everything else that is sent.

        Raises:
            EngineUnavailableError: the engine is not there.
        """
        ...

    def submit(self, command: SubmitTurn) -> TurnEvents:
        """Start a turn.

        Raises:
            EngineUnavailableError: the engine is not there.
        """
        ...

    def cancel(self, command: CancelTurn) -> None:
        """Cancel a turn; its events still end with one ending. Safe at any time."""
        ...

    async def ask(self, query: Query) -> Answer:
        """Ask about the engine's state.

        Raises:
            EngineUnavailableError: the engine is not there, or went away meanwhile.
        """
        ...
