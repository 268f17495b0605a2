"""A device whose streams do nothing until they are told to, in any order that events allow.

So whoever forgets to wait reads or writes wrong bytes under some order. Tensors are torch's on the
CPU. What is copied is copied in two parts, between which others may run.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.device.limits import DeviceMemoryState
from engine.device.protocol import DeviceEvent, Graph, Stream

LaunchWork = Callable[[], None]


def copy(target: Tensor, source: Tensor) -> None:
    """Copy, as an operation."""
    target.copy_(source)


class DeadlockError(AssertionError):
    """Somebody waits for what nothing will do."""


class FakeEvent:
    """Over when its stream has come by."""

    def __init__(self, device: "FakeDevice") -> None:
        self._device = device
        self.is_over = False

    def query(self) -> bool:
        self._device.queries += 1
        self._device.run_some(self._device.pace)
        return self.is_over

    def synchronize(self) -> None:
        self._device.run_until(lambda: self.is_over)


@dataclass(slots=True)
class _Wait:
    event: FakeEvent


class FakeStream:
    """A queue of operations. `eager`: they are done when they are put in, as far as events let."""

    def __init__(self, device: "FakeDevice", name: str, *, eager: bool = False) -> None:
        self._device = device
        self.name = name
        self.eager = eager
        self.copies = 0
        self.waits = 0
        self._queue: deque[LaunchWork | _Wait] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def run(self, work: LaunchWork) -> None:
        self._put(work)

    def copy(self, target: Tensor, source: Tensor) -> None:
        if target.shape != source.shape or target.dtype != source.dtype:
            raise ValueError(f"a copy of {source.shape} {source.dtype} to {target.shape}")
        self.copies += 1
        into, out_of = target.view(-1), source.view(-1)
        half = len(into) // 2
        self._put(lambda: copy(into[:half], out_of[:half]))
        self._put(lambda: copy(into[half:], out_of[half:]))

    def record(self) -> FakeEvent:
        event = FakeEvent(self._device)

        def come_by() -> None:
            event.is_over = True

        self._put(come_by)
        return event

    def wait(self, event: DeviceEvent) -> None:
        assert isinstance(event, FakeEvent), f"not an event of this device: {event!r}"
        self.waits += 1
        self._put(_Wait(event))

    def synchronize(self) -> None:
        self._device.run_until(lambda: not self._queue)

    @property
    def is_ready(self) -> bool:
        """Whether its next operation may be done now."""
        if not self._queue:
            return False
        head = self._queue[0]
        return not isinstance(head, _Wait) or head.event.is_over

    def step(self) -> None:
        """Do the next operation."""
        head = self._queue.popleft()
        if not isinstance(head, _Wait):
            head()

    def _put(self, operation: LaunchWork | _Wait) -> None:
        self._queue.append(operation)
        while self.eager and self._queue:
            if self.is_ready:
                self.step()
            else:  # others go on just until it may
                self._device.run_until(lambda: self.is_ready)


class FakeGraph:
    """Calls its work again, in the compute stream."""

    def __init__(self, device: "FakeDevice", work: Callable[[], Tensor]) -> None:
        self._device = device
        self._work = work
        self.output = work().clone()
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        self._device.compute.run(lambda: copy(self.output, self._work()))


@dataclass(eq=False)
class FakeDevice:
    """Implements `Device`. `seed` decides in which order streams go on.

    `eager_compute`: the compute stream does what it is given at once, others only when they must,
    or are told to: for code that computes on tensors directly, which can't be put off.
    `pace`: operations that are done by themselves before each question for an event: time passes.
    `facts` is what `memory` answers.
    """

    seed: int = 0
    eager_compute: bool = False
    pace: int = 0
    facts: DeviceMemoryState = field(
        default_factory=lambda: DeviceMemoryState(free=0, total=0, reserved=0)
    )
    queries: int = 0
    graphs: list[FakeGraph] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.streams: list[FakeStream] = []
        self.compute: Stream = self._stream("compute", eager=self.eager_compute)

    def stream(self) -> FakeStream:
        return self._stream(f"stream {len(self.streams)}", eager=False)

    def pinned(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def zeros(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def capture(self, work: Callable[[], Tensor]) -> Graph:
        self.graphs.append(FakeGraph(self, work))
        return self.graphs[-1]

    def memory(self) -> DeviceMemoryState:
        return self.facts

    def release_cached(self) -> None:
        """Nothing is kept."""

    # --- what the test decides -------------------------------------------------------------------

    def step(self) -> bool:
        """Do one operation of a stream that may go on, whichever; False: there is none."""
        ready = [stream for stream in self.streams if stream.is_ready]
        if ready:
            self._random.choice(ready).step()
        return bool(ready)

    def run_some(self, count: int) -> None:
        """Do up to so many operations."""
        while count and self.step():
            count -= 1

    def run_all(self) -> None:
        """Do everything.

        Raises:
            DeadlockError: a stream waits for what nobody does.
        """
        self.run_until(lambda: not any(self.streams))

    def run_until(self, holds: Callable[[], bool]) -> None:
        """Do operations until something holds, and none beyond.

        Raises:
            DeadlockError: it never will.
        """
        while not holds():
            if not self.step():
                raise DeadlockError("what is waited for is never done")

    def _stream(self, name: str, *, eager: bool) -> FakeStream:
        self.streams.append(FakeStream(self, name, eager=eager))
        return self.streams[-1]
