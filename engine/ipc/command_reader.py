"""Runs an engine loop: waits for input, steps, sends each step's output. Engine thread only."""

from collections.abc import Callable, Sequence
from typing import Protocol

from engine.ipc.framing import Ask, EngineInput, EngineOutput, QueryDone
from engine.ipc.messages import Command, EngineInfo, TurnEvent
from engine.ipc.queries import Query, QueryResult

Emit = Callable[[TurnEvent], None]


class Loop(Protocol):
    """The driven loop: `engine.core.loop.EngineLoop`."""

    def handle(self, command: Command) -> None:
        """Handle a command."""
        ...

    def answer(self, query: Query) -> QueryResult:
        """Answer a query about the engine's state."""
        ...

    def step(self, flush: Callable[[], None]) -> bool:
        """Run one step; False when there was nothing to do.

        Calls `flush` before the long part of the step.
        """
        ...

    def close(self) -> None:
        """Write what outlives the process, for a few seconds at most. No input follows."""
        ...

    @property
    def rest_s(self) -> float | None:
        """Seconds until an idle `step` would have work; None: only after input."""
        ...


LoopFactory = Callable[[Emit], tuple[Loop, EngineInfo]]


class Transport(Protocol):
    """Transport for input and output."""

    def receive(self, *, wait_s: float | None) -> Sequence[EngineInput] | None:
        """Return all waiting input, in order; None once the other side has closed.

        Sleeps until input arrives, `wait_s` seconds at most; None: no limit.
        """
        ...

    def send(self, outputs: list[EngineOutput]) -> None:
        """Send one step's output. May block, which is the engine's back-pressure."""
        ...


class OutputBuffer:
    """Buffers the output of one step."""

    def __init__(self) -> None:
        self._outputs: list[EngineOutput] = []

    def put(self, output: EngineOutput) -> None:
        """Add an event or an answer; this is the loop's `emit`."""
        self._outputs.append(output)

    def take(self) -> list[EngineOutput]:
        """Return everything collected since the last take."""
        outputs, self._outputs = self._outputs, []
        return outputs


def drive(loop: Loop, output_buffer: OutputBuffer, transport: Transport) -> None:
    """Run until the transport closes. An idle engine sleeps in `receive` and uses no CPU.

    `output_buffer.put` must be the loop's `emit`.
    """

    def flush() -> None:
        if outputs := output_buffer.take():
            transport.send(outputs)

    wait_s: float | None = 0.0
    while (inputs := transport.receive(wait_s=wait_s)) is not None:
        for item in inputs:
            if isinstance(item, Ask):
                output_buffer.put(QueryDone(number=item.number, answer=loop.answer(item.query)))
            else:
                loop.handle(item)
        wait_s = 0.0 if loop.step(flush) else loop.rest_s
        flush()
    loop.close()
