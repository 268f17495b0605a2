"""The CPU as a `Device`: all work is done when the call returns."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.device.limits import DeviceMemoryState
from engine.device.protocol import DeviceEvent, Graph, Stream
from engine.system.limits import free_host_bytes

if TYPE_CHECKING:
    from torch import Tensor


class DoneEvent:
    """An event that has already completed."""

    def query(self) -> bool:
        """See `DeviceEvent`."""
        return True

    def synchronize(self) -> None:
        """See `DeviceEvent`."""


class ImmediateStream:
    """Executes work at once."""

    def run(self, work: Callable[[], None]) -> None:
        """See `Stream`."""
        work()

    def copy(self, target: "Tensor", source: "Tensor") -> None:
        """See `Stream`."""
        target.copy_(source)

    def record(self) -> DeviceEvent:
        """See `Stream`."""
        return DoneEvent()

    def wait(self, event: DeviceEvent) -> None:
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
        """See `Device`. Not pinned: no copy is asynchronous."""
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

    def memory(self) -> DeviceMemoryState:
        """See `Device`."""
        free = free_host_bytes()
        return DeviceMemoryState(free=free, total=free, reserved=0)

    def release_cached(self) -> None:
        """See `Device`."""
