"""The instruction set that kernels use on this machine."""

import os
from pathlib import Path

import pytest

from engine.model.kernels.library import ISA_VARIABLE, ISAS

# what engine/model/kernels/dispatch.c asks for
_NEEDS = {
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {f"avx512{part}" for part in ("f", "bw", "vl", "dq", "_vnni", "_bf16")},
}


def each_isa():
    """Parameters of tests on each instruction set: the best in the first ring, others behind."""
    best = best_isa()
    return [name if name == best else pytest.param(name, marks=pytest.mark.second) for name in ISAS]


def best_isa() -> str:
    """The one that is asked for, else the best that the processor has."""
    asked = os.environ.get(ISA_VARIABLE)
    if asked:
        return asked
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    best, needed = "portable", set()
    for name in ISAS[1:]:
        needed |= _NEEDS[name]
        best = name if needed <= flags else best
    return best
