"""A device as whoever orders work on it sees it. Loop thread only.

A stream does what it is given in order, and at some time: nothing that two streams touch is in any
order unless one waits for an event of the other, or the host has seen the event.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Bytes. `free` and `total` are the driver's, for the device or instance that is in use.

    `reserved` is what this process's allocator holds, tensors and memory that it keeps for others.
    """

    free: int
    total: int
    reserved: int


class Event(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Whether the stream has come by. Never blocks."""
        ...

    def synchronize(self) -> None:
        """Block until it has."""
        ...


class Stream(Protocol):
    """Work in order."""

    def run(self, work: Callable[[], None]) -> None:
        """Put in what `work` orders; on a device that has queues it may return before."""
        ...

    def copy(self, target: "Tensor", source: "Tensor") -> None:
        """Copy equal shapes and types; the host's side is pinned, and is let be until it is done.

        Between the host and the device, or within either.
        """
        ...

    def record(self) -> Event:
        """A place behind all that was put in so far."""
        ...

    def wait(self, event: Event) -> None:
        """What is put in from now on begins after an event, of whichever stream. Never blocks."""
        ...

    def synchronize(self) -> None:
        """Block until all that was put in is done."""
        ...


class Graph(Protocol):
    """Captured work. It reads the tensors that it read when it was captured."""

    @property
    def output(self) -> "Tensor":
        """What the work returned: the same tensor after each replay."""
        ...

    def replay(self) -> None:
        """Put the work into the compute stream."""
        ...


class Device(Protocol):
    """One device. `compute` is the stream that the model's arithmetic runs in."""

    compute: Stream

    def stream(self) -> Stream:
        """Another stream, which waits for none by itself."""
        ...

    def pinned(self, num_bytes: int) -> "Tensor":
        """Bytes [num_bytes] of the host's memory that copies may go to and from by themselves.

        Raises:
            MemoryError: so much can't be pinned.
        """
        ...

    def zeros(self, num_bytes: int) -> "Tensor":
        """Bytes [num_bytes] of the device's memory, zero.

        Raises:
            MemoryError: there is not enough.
        """
        ...

    def capture(self, work: "Callable[[], Tensor]") -> Graph:
        """Make a graph of `work`, which is run first, and again while it is captured.

        So it must be harmless. It allocates nothing that it does not give back, blocks on nothing,
        and its tensors have the same shapes each time.

        Raises:
            MemoryError: there is not enough.
        """
        ...

    def memory(self) -> MemoryFacts:
        """What there is, and what this process has of it."""
        ...

    def give_back(self) -> None:
        """Let go of memory that is kept for later tensors."""
        ...
