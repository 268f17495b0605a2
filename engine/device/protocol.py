"""Interface of a device to the code that orders work on it. Loop thread only.

A stream executes its work in order, asynchronously: work of two streams is unordered unless one
waits for an event of the other, or the host has seen the event.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from engine.device.limits import DeviceMemoryState

if TYPE_CHECKING:
    from torch import Tensor


class DeviceEvent(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Whether the stream has reached the event. Never blocks."""
        ...

    def synchronize(self) -> None:
        """Block until the stream has reached the event."""
        ...


class Stream(Protocol):
    """Work that is executed in order."""

    def run(self, work: Callable[[], None]) -> None:
        """Enqueue `work`; on a device with queues it may return before the work is done."""
        ...

    def copy(self, target: "Tensor", source: "Tensor") -> None:
        """Enqueue a copy of equal shapes and types; the host's side is pinned and must not change.

        Between the host and the device, or within either.
        """
        ...

    def record(self) -> DeviceEvent:
        """Return an event behind all work enqueued so far."""
        ...

    def wait(self, event: DeviceEvent) -> None:
        """Order later work behind an event of any stream. Never blocks."""
        ...

    def synchronize(self) -> None:
        """Block until all enqueued work is done."""
        ...


class Graph(Protocol):
    """Captured work. It reads the same tensors as at its capture."""

    @property
    def output(self) -> "Tensor":
        """What the work returned: the same tensor after each replay."""
        ...

    def replay(self) -> None:
        """Enqueue the work in the compute stream."""
        ...


class Device(Protocol):
    """One device. `compute` is the stream of the model's arithmetic."""

    compute: Stream

    def stream(self) -> Stream:
        """Return a new stream, which waits for no other unless told to by `Stream.wait`."""
        ...

    def pinned(self, num_bytes: int) -> "Tensor":
        """Return [num_bytes] bytes of the host's memory for asynchronous copies.

        Raises:
            MemoryError: this much can't be pinned.
        """
        ...

    def zeros(self, num_bytes: int) -> "Tensor":
        """Return [num_bytes] zeroed bytes of the device's memory.

        Raises:
            MemoryError: there is not enough memory.
        """
        ...

    def capture(self, work: "Callable[[], Tensor]") -> Graph:
        """Capture `work` in a graph. It is run before and during the capture.

        It must have no side effects, free all memory that it allocates, never block, and use the
        same shapes each time.

        Raises:
            MemoryError: there is not enough.
        """
        ...

    def memory(self) -> DeviceMemoryState:
        """Memory of the device, and of this process on it."""
        ...

    def release_cached(self) -> None:
        """Free memory that the allocator keeps for later tensors."""
        ...
