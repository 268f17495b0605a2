"""What the card itself can do, measured: bytes per second, operations per second."""

from dataclasses import dataclass

import torch

from benchmarks.device.clock import DeviceClock

_REPEATS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Bytes per second of device memory, operations per second, bytes per second to and from.

    `memory` counts bytes read and written of a copy, or those read of a sum, whichever is faster.
    `out` and `back`: a plain copy between the device and pinned memory of the host.
    """

    memory: float
    matrix: float
    out: float
    back: float


def measure_ceilings(clock: DeviceClock, dtype: torch.dtype) -> Ceilings:
    """Measure all, on random numbers."""
    is_cuda = clock.device.type == "cuda"
    out, back = _host_rates(clock, (1 << 28) if is_cuda else (1 << 24))
    return Ceilings(
        memory=_memory_rate(clock, (1 << 30) if is_cuda else (1 << 25)),
        matrix=_matrix_rate(clock, dtype, 8192 if is_cuda else 512),
        out=out,
        back=back,
    )


def _memory_rate(clock: DeviceClock, size: int) -> float:
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    numbers = source.view(torch.int32)
    copy_s = clock.median_s(lambda: target.copy_(source), _REPEATS)
    sum_s = clock.median_s(numbers.max, _REPEATS)
    return max(2 * size / copy_s, size / sum_s)


def _matrix_rate(clock: DeviceClock, dtype: torch.dtype, size: int) -> float:
    left, right = (torch.randn(size, size, device=clock.device).to(dtype) for _ in range(2))
    return 2 * size**3 / clock.median_s(lambda: left @ right, _REPEATS)


def _host_rates(clock: DeviceClock, size: int) -> tuple[float, float]:
    pinned = clock.device.type == "cuda"
    host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    device = torch.randint(0, 256, (size,), dtype=torch.uint8, device=clock.device)
    out_s = clock.median_s(lambda: host.copy_(device, non_blocking=pinned), _REPEATS)
    back_s = clock.median_s(lambda: device.copy_(host, non_blocking=pinned), _REPEATS)
    return size / out_s, size / back_s
