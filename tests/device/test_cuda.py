"""How `CudaDevice` calls torch, where there is no card: the calls are answered by stand-ins."""

import gc
import re
from collections.abc import Callable

import pytest
import torch

from engine.device.cuda import CudaDevice

OUT_OF_MEMORY, ALREADY_REGISTERED = 2, 712


class Runtime:
    """CUDA's runtime as far as it pins; `last_error` is what a kernel's check would find."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.most = 1 << 20
        self.last_error = 0
        self.is_copying = True

    def synchronize(self, _index: int) -> None:
        self.is_copying = False

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:  # noqa: N802 -- CUDA's
        ends = [(at, at + length) for at, length in self.pinned.items()]
        if size > self.most:
            self.last_error = OUT_OF_MEMORY
        elif any(address < end and at < address + size for at, end in ends):
            self.last_error = ALREADY_REGISTERED
        else:
            self.pinned[address] = size
            return 0
        return self.last_error

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 -- CUDA's
        assert not self.is_copying, "from or to memory that goes"
        del self.pinned[address]
        return 0

    def check_launch(self, *_args: object, **_named: object) -> None:
        """As every kernel of torch does."""
        error, self.last_error = self.last_error, 0
        if error:
            raise torch.AcceleratorError(f"CUDA error {error}")


class Streams:
    """The current stream, and a capture that ends as the test says."""

    def __init__(self) -> None:
        self.current: object = FakeStream()
        self.end: Callable[[], None] = lambda: None

    def graph(self, *_args: object, stream: object, **_named: object) -> "Capture":
        return Capture(self, stream)

    def stream(self, stream: object) -> "Within":
        return Within(self, stream)

    def make_current(self, stream: object) -> None:
        self.current = stream


class FakeStream:
    def wait_stream(self, _other: object) -> None:
        pass


class Within:
    """torch.cuda.stream."""

    def __init__(self, streams: Streams, stream: object) -> None:
        self.streams, self.stream = streams, stream

    def __enter__(self) -> None:
        self.before, self.streams.current = self.streams.current, self.stream

    def __exit__(self, *_about: object) -> None:
        self.streams.current = self.before


class Capture(Within):
    """torch.cuda.graph: where the capture's end raises, its stream stays the current one."""

    def __exit__(self, *about: object) -> None:
        self.streams.end()
        super().__exit__(*about)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "synchronize", runtime.synchronize)
    monkeypatch.setattr(torch, "full", runtime.check_launch)
    return runtime


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    streams = Streams()
    for name, stand_in in {
        "current_device": lambda: 0,
        "current_stream": lambda: streams.current,
        "set_stream": streams.make_current,
        "stream": streams.stream,
        "graph": streams.graph,
        "graph_pool_handle": lambda: (0, 1),
        "CUDAGraph": object,
        "Stream": lambda _index: FakeStream(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return streams


@pytest.fixture
def device(streams: Streams) -> CudaDevice:
    del streams
    return CudaDevice()


def test_pinned_memory_is_unpinned_before_its_addresses_are_had_again(
    device: CudaDevice, runtime: Runtime
) -> None:
    for _ in range(5):
        words = device.pinned(64).view(torch.int64)
        runtime.is_copying = True
        assert list(runtime.pinned) == [words.data_ptr()], "while anything refers to it"
        del words
        assert not runtime.pinned


def test_memory_that_cant_be_pinned_leaves_no_error_for_the_next_kernel(
    device: CudaDevice, runtime: Runtime
) -> None:
    runtime.most = 32
    with pytest.raises(MemoryError, match="64 bytes cannot be pinned"):
        device.pinned(64)
    runtime.check_launch()
    assert not runtime.pinned


SHORTAGES = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
]


@pytest.mark.parametrize("error", SHORTAGES)
def test_a_capture_that_ends_in_a_shortage_leaves_the_stream_as_it_was(
    device: CudaDevice, streams: Streams, error: Exception
) -> None:
    before = streams.current

    def end() -> None:
        raise error

    streams.end = end
    with pytest.raises(MemoryError, match=re.escape(str(error))):
        device.capture(lambda: torch.zeros(1))
    assert streams.current is before


def test_a_capture_that_is_not_allowed_is_no_shortage(device: CudaDevice, streams: Streams) -> None:
    def end() -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    before, streams.end = streams.current, end
    with pytest.raises(RuntimeError, match="not permitted"):
        device.capture(lambda: torch.zeros(1))
    assert streams.current is before


def test_nothing_is_collected_while_work_is_captured(device: CudaDevice, streams: Streams) -> None:
    before, seen = streams.current, []

    def work() -> torch.Tensor:
        seen.append(gc.isenabled())
        return torch.zeros(1)

    device.capture(work)
    assert seen == [True, True, False], "two runs in advance"
    assert gc.isenabled()
    assert streams.current is before
