"""Memory of this process, part by part. Reads /proc; elsewhere most parts are 0."""

import ctypes
import mmap
import os
import resource
import sys
from pathlib import Path
from typing import Any

import msgspec

_SELF = Path("/proc/self")
_KIB = 1024


class ProcessMemory(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Bytes, except `pid`, `files` and `threads`.

    `rss` is the sum of `anonymous` and `mapped_files`: resident pages of no file, and of files (a
    model's weights, libraries), which the system reclaims when it needs them. Of the anonymous ones
    `heap_used` is in use in the C heap's arenas, `heap_free` is kept for later. `kv_committed` is
    the part of the KV pool that has been written so far. On a GPU `device_live` is what tensors
    hold and `device_reserved` what torch's allocator keeps for them.
    """

    pid: int
    rss_bytes: int
    peak_rss_bytes: int
    anonymous_bytes: int
    mapped_files_bytes: int
    heap_used_bytes: int
    heap_free_bytes: int
    kv_committed_bytes: int
    device_live_bytes: int
    device_reserved_bytes: int
    files: int
    files_limit: int
    threads: int


_HEAP_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Heap(ctypes.Structure):
    """See mallinfo2(3)."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _HEAP_FIELDS)


def process_memory(pool_bytes: int = 0) -> ProcessMemory:
    """Measure this process. `pool_bytes`: size of its KV pool; 0: it has none."""
    status = _fields(_SELF / "status")
    used, kept = _heap()
    live, reserved = _device()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
    return ProcessMemory(
        pid=os.getpid(),
        rss_bytes=status.get("VmRSS", peak),
        peak_rss_bytes=status.get("VmHWM", peak),
        anonymous_bytes=status.get("RssAnon", 0) + status.get("RssShmem", 0),
        mapped_files_bytes=status.get("RssFile", 0),
        heap_used_bytes=used,
        heap_free_bytes=kept,
        kv_committed_bytes=_committed(pool_bytes) if pool_bytes else 0,
        device_live_bytes=live,
        device_reserved_bytes=reserved,
        files=_count(_SELF / "fd"),
        files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        threads=_count(_SELF / "task"),
    )


def keep_out_of_dumps(address: int, num_bytes: int) -> None:
    """Exclude whole pages from core dumps: KV is users' text.

    This also makes them a mapping of their own, by which `process_memory` finds the KV pool.
    """
    if sys.platform == "linux":
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        advise(address, num_bytes, mmap.MADV_DONTDUMP)


def _heap() -> tuple[int, int]:
    """Used and free bytes of the C heap's arenas; large blocks are separate mappings."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:  # glibc only, from 2.33 on
        return 0, 0
    mallinfo.restype = _Heap
    heap = mallinfo()
    return heap.uordblks, heap.fordblks


def _device() -> tuple[int, int]:
    torch: Any = sys.modules.get("torch")  # imported already where it is used
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0, 0
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def _committed(pool_bytes: int) -> int:
    """Resident part of the smallest anonymous mapping that can hold the pool."""
    file = _SELF / "smaps"
    found: list[tuple[int, int]] = []
    size = 0
    for line in file.read_text().splitlines() if file.exists() else ():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            size = end - start if len(rest) == 4 else 0
        elif first == "Rss:" and size >= pool_bytes:
            found.append((size, int(rest[0]) * _KIB))
    return min(pool_bytes, min(found)[1]) if found else 0


def _fields(file: Path) -> dict[str, int]:
    """The lines `Name: number kB`, in bytes."""
    found = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            found[name] = int(value.split()[0]) * _KIB
    return found


def _count(folder: Path) -> int:
    return len(os.listdir(folder)) if folder.exists() else 0  # noqa: PTH208 -- names alone
