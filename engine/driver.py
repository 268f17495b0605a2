"""Turns an engine loop: waits for input, steps, hands on each step's output. Engine thread only."""

from collections.abc import Callable, Sequence
from typing import Protocol

from engine.framing import Answered, Ask, EngineInput, EngineOutput
from engine.messages import Command, EngineInfo, TurnEvent
from engine.questions import Answer, Query

Emit = Callable[[TurnEvent], None]


class Loop(Protocol):
    """What is driven: `engine.loop.EngineLoop`."""

    def handle(self, command: Command) -> None:
        """Take a command."""
        ...

    def answer(self, query: Query) -> Answer:
        """Answer a question about the engine's state."""
        ...

    def step(self, tell: Callable[[], None]) -> bool:
        """Do one step's work; False when there was nothing to do.

        Calls `tell` before the part that takes long.
        """
        ...

    def close(self) -> None:
        """The door has closed: write what shall outlive the process, for a few seconds."""
        ...

    @property
    def rest_s(self) -> float | None:
        """When `step` found nothing to do: in how many seconds it would; None: not by itself."""
        ...


LoopFactory = Callable[[Emit], tuple[Loop, EngineInfo]]


class Door(Protocol):
    """Where input comes in and output goes out."""

    def receive(self, *, wait_s: float | None) -> Sequence[EngineInput] | None:
        """All waiting input, in order; None once the other side has closed.

        Sleeps until there is some, `wait_s` seconds at most; None: as long as it takes.
        """
        ...

    def send(self, outputs: list[EngineOutput]) -> None:
        """Hand one step's output on. May wait: that holds the engine back, and is its bound."""
        ...


class Outbox:
    """Collects what one step brings."""

    def __init__(self) -> None:
        self._outputs: list[EngineOutput] = []

    def put(self, output: EngineOutput) -> None:
        """Add an event or an answer; this is the loop's `emit`."""
        self._outputs.append(output)

    def take(self) -> list[EngineOutput]:
        """Everything collected since the last take."""
        outputs, self._outputs = self._outputs, []
        return outputs


def drive(loop: Loop, outbox: Outbox, door: Door) -> None:
    """Run until the door closes. An idle engine sleeps in `receive` and takes no CPU.

    `outbox.put` must be the loop's `emit`.
    """

    def tell() -> None:
        if outputs := outbox.take():
            door.send(outputs)

    wait_s: float | None = 0.0
    while (inputs := door.receive(wait_s=wait_s)) is not None:
        for item in inputs:
            if isinstance(item, Ask):
                outbox.put(Answered(number=item.number, answer=loop.answer(item.query)))
            else:
                loop.handle(item)
        wait_s = 0.0 if loop.step(tell) else loop.rest_s
        tell()
    loop.close()
