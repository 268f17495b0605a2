"""How much of a device's memory this process may use. Pure.

The driver's numbers for the device in use count: for a MIG instance it reports the instance's
memory, and under HAMi (libvgpu, which intercepts the driver) total and free are those of the limit.
HAMi can be built without that answer, and other layers set limits by variables only, so these
variables are read, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.system.byte_size import format_bytes

LIMIT_VARIABLE = "CUDA_DEVICE_MEMORY_LIMIT"
"""Variable of HAMi-core for all devices; with `_0` and so on for one (Project-HAMi/HAMi-core)."""

CONTEXT_BYTES = 512 * 2**20
"""Approximate memory of a CUDA context and its libraries; the driver does not report it."""

_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemoryState:
    """Bytes. `free` and `total` are the driver's, for the device or instance in use.

    `reserved` is held by this process's allocator: tensors, and memory kept for later ones.
    """

    free: int
    total: int
    reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Bytes available beside this process's tensors; the reason of a limit, as text."""

    free_bytes: int
    reason: str = ""


def memory_limit(environment: Mapping[str, str], index: int) -> int | None:
    """Memory limit of a sharing layer for device number `index`, in bytes; None: no limit.

    HAMi's rules: the device's own variable precedes the common one; 0 and invalid values are no
    limit.
    """
    for name in (f"{LIMIT_VARIABLE}_{index}", LIMIT_VARIABLE):
        limit = _parse(environment.get(name, ""))
        if limit:
            return limit
    return None


def free_within(memory_state: DeviceMemoryState, limit: int | None) -> Free:
    """The lesser of the driver's free memory and the rest of a limit.

    If the driver's total is within the limit, its answer already respects the limit.
    """
    if limit is None or memory_state.total <= limit:
        return Free(free_bytes=memory_state.free)
    left = max(0, limit - memory_state.reserved - CONTEXT_BYTES)
    if left >= memory_state.free:
        return Free(free_bytes=memory_state.free)
    reason = (
        f"a limit of {format_bytes(limit)} ({LIMIT_VARIABLE}), "
        f"of which CUDA itself takes about {format_bytes(CONTEXT_BYTES)}"
    )
    return Free(free_bytes=left, reason=reason)


def _parse(text: str) -> int:
    digits, unit = text.strip(), 1
    if digits[-1:].lower() in _UNITS:
        digits, unit = digits[:-1], _UNITS[digits[-1].lower()]
    return int(digits) * unit if digits.isascii() and digits.isdigit() else 0
