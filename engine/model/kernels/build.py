"""Compiles the kernels into one library: each kernel once per instruction set, chosen at run time.

Standard library only: the package's build (setup.py) runs it before anything is installed.
By hand: `python -m engine.model.kernels.build [--sanitize]`.
"""

import os
import platform
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.system.c_compiler import find_compiler, run_compiler

HERE = Path(__file__).resolve().parent
LIBRARY_NAME = "libsessiond_kernels.so"
# no contraction: whether operations are fused must not depend on inlining
_FLAGS = ("-std=gnu11", "-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off")
_WARNINGS = ("-Wall", "-Wextra", "-Wno-psabi")
_FAST = ("-O3", "-fno-strict-aliasing")
_SANITIZED = (
    "-O0",  # optimising the checks of inlined code takes minutes
    "-DSESSIOND_SANITIZED",
    "-g",
    "-fno-strict-aliasing",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)
_COMMON_SOURCES = ("buffers", "dispatch", "memory", "plan", "pool", "step")
_KERNEL_SOURCES = (
    "activations",
    "attention",
    "kv_int8",
    "linear_bf16",
    "linear_q4_0",
    "linear_q4_1",
    "linear_q8_0",
    "logits",
    "rope_kv",
    "table",
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx512bf16")
_X86_SETS = {
    "avx2": ("-DSESSIOND_AVX2", *_AVX2),
    "avx512": ("-DSESSIOND_AVX512", *_AVX2, *_AVX512, "-mprefer-vector-width=512"),
}


def sources() -> list[Path]:
    """Return all source files of the library."""
    return sorted((*HERE.glob("*.c"), *HERE.glob("*.h")))


def build(target: Path, *, sanitize: bool = False) -> None:
    """Compile the library to `target`, replacing it at the end in one rename.

    Raises:
        BuildError: there is no compiler, or it rejected the code.
    """
    compiler = find_compiler().split()
    flags = (*_FLAGS, *_WARNINGS, *(_SANITIZED if sanitize else _FAST))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        units = _units(Path(folder))
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
            list(threads.map(lambda unit: run_compiler([*compiler, *flags, *unit]), units))
        objects = [str(path) for path in sorted(Path(folder).glob("*.o"))]
        library = Path(folder) / LIBRARY_NAME
        run_compiler([*compiler, *flags, "-shared", *objects, "-o", str(library), "-lm"])
        library.replace(target)


def _units(folder: Path) -> list[list[str]]:
    """Return the compiler's arguments for each object file."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    sets = {"portable": (), **(_X86_SETS if is_x86 else {})}
    common = ["-DSESSIOND_X86"] if is_x86 else []
    units = [[*common, *_unit(source, folder, "")] for source in _COMMON_SOURCES]
    units += [
        [*flags, *_unit(source, folder, f"_{name}")]
        for name, flags in sets.items()
        for source in _KERNEL_SOURCES
    ]
    return units


def _unit(source: str, folder: Path, suffix: str) -> list[str]:
    return ["-c", str(HERE / f"{source}.c"), "-o", str(folder / f"{source}{suffix}.o")]


def main() -> None:
    """Build the library in the package."""
    sanitize = "--sanitize" in sys.argv[1:]
    target = HERE / (f"sanitized/{LIBRARY_NAME}" if sanitize else LIBRARY_NAME)
    build(target, sanitize=sanitize)
    sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main()
