"""Kernels and steps under the address and undefined-behaviour sanitizers, threads under theirs."""

import subprocess
from functools import partial
from pathlib import Path

import pytest

from engine.model.kernels.build import HERE, LIBRARY_NAME, build
from engine.system.c_compiler import find_compiler
from tests.sanitizers import drive, sanitizer_runtime

pytestmark = pytest.mark.second


@pytest.mark.timeout(900)
def test_no_access_out_of_bounds_and_nothing_undefined(tmp_path):
    said = drive(
        "tests.kernels.drive",
        tmp_path / LIBRARY_NAME,
        partial(build, sanitize=True),
        OPENBLAS_NUM_THREADS="1",
    )
    assert "portable clean" in said


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
