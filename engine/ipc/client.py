"""Interface to an engine in a thread, a child process or, later, a cluster."""

from collections.abc import AsyncIterator
from typing import Protocol

from engine.ids import TurnId
from engine.ipc.messages import CancelTurn, ContextCommand, EngineInfo, SubmitTurn, TurnEvent
from engine.ipc.queries import (
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
    QueryResult,
    Residency,
)

__all__ = [
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
    "QueryResult",
    "Residency",
    "TurnEvent",
    "TurnEvents",
]


class TurnEvents(Protocol):
    """Events of one turn: `TurnStarted`, deltas, then exactly one ending, which is the last event.

    Bounded: waiting deltas are merged into one when the reader is slow.
    """

    @property
    def turn(self) -> TurnId:
        """Id of the turn that these events belong to."""
        ...

    def __aiter__(self) -> AsyncIterator[TurnEvent]:
        """Iterate once, by one task."""
        ...


class EngineClient(Protocol):
    """Client of one engine. All methods are called from one asyncio loop.

    `epoch` starts at 1 and rises by one whenever the engine loses its memory. A context that was
    set under an older epoch is gone: set it again before submitting. Reading `epoch`, `send` and
    `submit` are atomic as long as the caller does not await between them.
    """

    @property
    def info(self) -> EngineInfo:
        """Description of the engine.

        Raises:
            EngineUnavailableError: before `start` has returned.
        """
        ...

    @property
    def epoch(self) -> int:
        """Number of times the engine has started."""
        ...

    @property
    def available(self) -> bool:
        """Whether commands are accepted now."""
        ...

    @property
    def restarts(self) -> int:
        """Number of times the engine was lost and restarted."""
        ...

    @property
    def hangs(self) -> int:
        """Number of these losses in which the engine hung and was killed."""
        ...

    async def start(self) -> None:
        """Start the engine and wait until it is ready."""
        ...

    async def ready(self) -> None:
        """Wait until commands are accepted (again). Callers set a timeout."""
        ...

    async def stop(self) -> None:
        """Stop the engine; running turns end in `TurnFailed`."""
        ...

    def send(self, command: ContextCommand) -> None:
        """Change a context. Commands are applied in the order in which they are sent.

        Raises:
            EngineUnavailableError: the engine is not running.
        """
        ...

    def submit(self, command: SubmitTurn) -> TurnEvents:
        """Start a turn.

        Raises:
            EngineUnavailableError: the engine is not running.
        """
        ...

    def cancel(self, command: CancelTurn) -> None:
        """Cancel a turn; its events still end with exactly one ending. Safe at any time."""
        ...

    async def ask(self, query: Query) -> QueryResult:
        """Query the engine's state.

        Raises:
            EngineUnavailableError: the engine is not running, or was lost before it answered.
        """
        ...
