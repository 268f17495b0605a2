"""Times work on a device: by its own events on CUDA, by the clock on a CPU."""

import statistics
import time
from collections.abc import Callable

import torch

_AHEAD_CYCLES = 40_000_000  # some 20 ms: longer than Python takes to launch a step's kernels


class DeviceClock:
    """Seconds that work takes on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._is_cuda = device.type == "cuda"

    def synchronize(self) -> None:
        """Wait until all that was launched has ended."""
        if self._is_cuda:
            torch.cuda.synchronize(self.device)

    def median_s(self, work: Callable[[], object], repeats: int) -> float:
        """Run once to warm up, then so often; returns the median."""
        work()
        return statistics.median(self.once_s(work) for _ in range(repeats))

    def once_s(self, work: Callable[[], object], *, ahead: bool = False) -> float:
        """Run once. With `ahead` the device first waits, so that only its own work counts.

        Else the gaps count, too, in which it waits for the next kernel to be launched.
        """
        self.synchronize()
        if not self._is_cuda:
            started_s = time.perf_counter()
            work()
            return time.perf_counter() - started_s
        start, end = _event(), _event()
        if ahead:
            torch.cuda._sleep(_AHEAD_CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001 -- torch has no other
        start.record()
        work()
        end.record()
        self.synchronize()
        return float(start.elapsed_time(end)) / 1000


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's
