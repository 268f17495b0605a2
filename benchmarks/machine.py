"""Says in generic words what the benchmarks ran on."""

import os
import platform
from pathlib import Path

_KNOWN_FLAGS = {"avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "BF16", "avx2": "AVX2"}


def describe_machine() -> str:
    """Cores, what matters of the instruction set, memory, system; no names of hosts."""
    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    flags = [name for flag, name in _KNOWN_FLAGS.items() if flag in _cpu_flags()]
    extensions = ", ".join(flags) or "plain"
    return (
        f"{cores} cores {platform.machine()} ({extensions}), {memory_gib:.0f} GiB memory, "
        f"no GPU used, {platform.system()}"
    )


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())
