"""Kernels and steps under the address and undefined-behaviour sanitizers, threads under theirs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.c_compiler import BuildError, find_compiler
from engine.model.kernels.build import HERE, LIBRARY_NAME, build


def sanitizer_runtime(name):
    """Path of a runtime library, None where the compiler has none."""
    try:
        compiler = find_compiler().split()
    except BuildError:
        return None
    found = subprocess.run(
        [*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return found if Path(found).is_absolute() else None


@pytest.mark.timeout(900)
def test_no_access_out_of_bounds_and_nothing_undefined(tmp_path):
    runtime = sanitizer_runtime("libasan.so")
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


def test_threads_meet_without_races(tmp_path):
    if sanitizer_runtime("libtsan.so") is None:
        pytest.skip("the compiler has no thread sanitizer")
    program = tmp_path / "pool_driver"
    driver = Path(__file__).with_name("pool_driver.c")
    subprocess.run(
        [
            *find_compiler().split(),
            *("-std=gnu11", "-O1", "-g", "-pthread", "-fsanitize=thread", f"-I{HERE}"),
            *(str(driver), str(HERE / "pool.c"), "-o", str(program)),
        ],
        check=True,
    )
    result = subprocess.run([program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
