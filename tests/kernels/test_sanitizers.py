"""The kernels and whole steps under the address and undefined-behaviour sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.model.kernels.build import LIBRARY_NAME, BuildError, build, find_compiler


def sanitizer_runtime():
    """Path of the runtime that must be loaded first, None where the compiler has none."""
    try:
        compiler = find_compiler().split()
    except BuildError:
        return None
    found = subprocess.run(
        [*compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return found if Path(found).is_absolute() else None


@pytest.mark.timeout(600)
def test_no_access_out_of_bounds_and_nothing_undefined(tmp_path):
    runtime = sanitizer_runtime()
    if runtime is None:
        pytest.skip("the compiler has no sanitizers")
    library = tmp_path / LIBRARY_NAME
    build(library, sanitize=True)
    result = subprocess.run(
        [sys.executable, "-m", "tests.kernels.drive", str(library)],
        env={
            **os.environ,
            "LD_PRELOAD": runtime,
            # the interpreter keeps memory until its end on purpose
            "ASAN_OPTIONS": "detect_leaks=0",
            "OPENBLAS_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert "portable clean" in result.stdout
