"""A CUDA device, or a MIG instance of one, through torch, which is imported on construction."""

import contextlib
import gc
import mmap
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.device.faults import is_shortage
from engine.device.limits import DeviceMemoryState
from engine.device.protocol import DeviceEvent, Graph, Stream

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_WARM_UPS = 2  # in the first runs libraries allocate, and kernels are compiled and tuned


class CudaEvent:
    """Implements `DeviceEvent`."""

    def __init__(self, event: "torch.cuda.Event") -> None:
        self.raw = event

    def query(self) -> bool:
        """See `DeviceEvent`."""
        return bool(self.raw.query())  # type: ignore[no-untyped-call]  # torch's

    def synchronize(self) -> None:
        """See `DeviceEvent`."""
        self.raw.synchronize()


class CudaStream:
    """Implements `Stream`."""

    def __init__(self, stream: "torch.cuda.Stream") -> None:
        self.raw = stream

    def run(self, work: Callable[[], None]) -> None:
        """See `Stream`."""
        import torch

        with torch.cuda.stream(self.raw):
            work()

    def copy(self, target: "Tensor", source: "Tensor") -> None:
        """See `Stream`."""
        import torch

        with torch.cuda.stream(self.raw):
            target.copy_(source, non_blocking=True)

    def record(self) -> DeviceEvent:
        """See `Stream`."""
        return CudaEvent(self.raw.record_event())

    def wait(self, event: DeviceEvent) -> None:
        """See `Stream`.

        Raises:
            TypeError: the event is another kind of device's.
        """
        if not isinstance(event, CudaEvent):
            raise TypeError(f"a CUDA stream cannot wait for {event!r}")
        self.raw.wait_event(event.raw)

    def synchronize(self) -> None:
        """See `Stream`."""
        self.raw.synchronize()


class CudaGraph:
    """Implements `Graph`."""

    def __init__(self, graph: "torch.cuda.CUDAGraph", output: "Tensor") -> None:
        self._graph = graph
        self.output = output

    def replay(self) -> None:
        """See `Graph`."""
        self._graph.replay()


class CudaDevice:
    """The current CUDA device of the thread that makes it. Implements `Device`.

    `index` is its number among the visible devices (CUDA_VISIBLE_DEVICES, by number or UUID).
    Graphs share one memory pool: each result is consumed before the next graph is replayed.
    """

    def __init__(self) -> None:
        import torch

        self.index = torch.cuda.current_device()
        self.compute: Stream = CudaStream(torch.cuda.current_stream())
        self._captured_in: torch.cuda.Stream | None = None
        self._graph_pool: Any = None  # a handle of a private type of torch

    def stream(self) -> Stream:
        """See `Device`. torch makes streams that don't wait for the default one."""
        return CudaStream(_new_stream(self.index))

    def pinned(self, num_bytes: int) -> "Tensor":
        """See `Device`. Freed with its last reference.

        torch's own pinned memory is rounded up to a power of two (pytorch#95823, #150517), so that
        33 GiB would take 64.
        """
        import torch

        pages = _PinnedPages(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        data = torch.frombuffer(pages, dtype=torch.uint8)
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's
        failure = int(runtime.cudaHostRegister(data.data_ptr(), num_bytes, 0))
        if failure:
            self._forget_error()
            raise MemoryError(f"{num_bytes} bytes cannot be pinned (CUDA error {failure})")
        pages.unpin = partial(self._unpin, runtime, data.data_ptr())
        return data

    def zeros(self, num_bytes: int) -> "Tensor":
        """See `Device`."""
        import torch

        try:
            return torch.zeros(num_bytes, dtype=torch.uint8, device=f"cuda:{self.index}")
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error

    def capture(self, work: "Callable[[], Tensor]") -> Graph:
        """See `Device`."""
        import torch

        if self._captured_in is None:
            self._captured_in = _new_stream(self.index)
            self._graph_pool = torch.cuda.graph_pool_handle()
        aside, graph = self._captured_in, torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream()
        aside.wait_stream(current)
        try:
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UPS):
                    work()
            current.wait_stream(aside)
            with (
                _no_collection(),
                torch.cuda.graph(graph, pool=self._graph_pool, stream=aside),
            ):
                output = work()
        except RuntimeError as error:
            if not is_shortage(error):
                raise
            raise MemoryError(str(error)) from error
        finally:
            # after a failed capture torch's context leaves its own stream as the current one
            torch.cuda.set_stream(current)
        return CudaGraph(graph, output)

    def memory(self) -> DeviceMemoryState:
        """See `Device`."""
        import torch

        free, total = torch.cuda.mem_get_info(self.index)
        return DeviceMemoryState(
            free=int(free),
            total=int(total),
            reserved=torch.cuda.memory_reserved(self.index),
        )

    def release_cached(self) -> None:
        """See `Device`."""
        import torch

        torch.cuda.empty_cache()

    def _unpin(self, runtime: Any, address: int) -> None:
        """Unpin memory, once all copies that use it have ended."""
        import torch

        torch.cuda.synchronize(self.index)
        runtime.cudaHostUnregister(address)

    def _forget_error(self) -> None:
        """Clear the error of a failed runtime call: otherwise the next kernel's check finds it.

        torch has no call for that; its check after a launch takes the error, and raises it.
        """
        import torch

        with contextlib.suppress(RuntimeError):
            torch.full((1,), 0, dtype=torch.uint8, device=f"cuda:{self.index}")


class _PinnedPages(mmap.mmap):
    """Memory that is unpinned before it is unmapped.

    Memory that is unmapped while CUDA has it registered can't be registered when its addresses are
    reused, or copies go to unowned pages.
    """

    unpin: Callable[[], object] | None = None

    def __del__(self) -> None:
        """Runs before the memory itself is freed."""
        if self.unpin is not None:
            self.unpin()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Suspends garbage collection: freeing graphs, events or pinned memory breaks a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _new_stream(index: int) -> "torch.cuda.Stream":
    import torch

    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]  # torch's
