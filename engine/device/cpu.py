"""The CPU as a `Device`: all work has been done when the call returns."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.device.protocol import Event, Graph, MemoryFacts, Stream
from engine.free_memory import free_host_bytes

if TYPE_CHECKING:
    from torch import Tensor


class DoneEvent:
    """An event that has already completed."""

    def query(self) -> bool:
        """See `Event`."""
        return True

    def synchronize(self) -> None:
        """See `Event`."""


class ImmediateStream:
    """Executes work at once."""

    def run(self, work: Callable[[], None]) -> None:
        """See `Stream`."""
        work()

    def copy(self, target: "Tensor", source: "Tensor") -> None:
        """See `Stream`."""
        target.copy_(source)

    def record(self) -> Event:
        """See `Stream`."""
        return DoneEvent()

    def wait(self, event: Event) -> None:
        """See `Stream`. All events have completed."""

    def synchronize(self) -> None:
        """See `Stream`."""


class RecordedCall:
    """Work that is called again at each replay, in place of a graph."""

    def __init__(self, work: "Callable[[], Tensor]") -> None:
        self._work = work
        self.output = work().clone()

    def replay(self) -> None:
        """See `Graph`."""
        self.output.copy_(self._work())


class CpuDevice:
    """Implements `Device`. Its memory is the host's; torch does not count tensors' memory."""

    def __init__(self) -> None:
        self.compute: Stream = ImmediateStream()

    def stream(self) -> Stream:
        """See `Device`."""
        return ImmediateStream()

    def pinned(self, num_bytes: int) -> "Tensor":
        """See `Device`. Pinning has no use where no copy is asynchronous."""
        return self.zeros(num_bytes)

    def zeros(self, num_bytes: int) -> "Tensor":
        """See `Device`."""
        import torch

        try:
            return torch.zeros(num_bytes, dtype=torch.uint8)
        except RuntimeError as error:  # torch raises no more specific type
            raise MemoryError(str(error)) from error

    def capture(self, work: "Callable[[], Tensor]") -> Graph:
        """See `Device`."""
        return RecordedCall(work)

    def memory(self) -> MemoryFacts:
        """See `Device`."""
        free = free_host_bytes()
        return MemoryFacts(free=free, total=free, reserved=0)

    def give_back(self) -> None:
        """See `Device`."""
