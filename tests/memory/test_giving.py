"""The C library that gives back many blocks: under sanitizers, and where there is none."""

import os
import subprocess
import sys

import pytest

from engine.c_compiler import BuildError, find_compiler
from engine.memory.give_build import LIBRARY_NAME, build
from engine.memory.give_library import load
from tests.kernels.test_sanitizers import sanitizer_runtime


def test_no_access_out_of_bounds_and_nothing_undefined(tmp_path):
    runtime = sanitizer_runtime("libasan.so")
    if runtime is None:
        pytest.skip("the compiler has no sanitizers")
    library = tmp_path / LIBRARY_NAME
    build(library, ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
    done = subprocess.run(
        [sys.executable, "-m", "tests.memory.giving", str(library)],
        # the interpreter keeps memory until its end on purpose
        env={**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "clean" in done.stdout


def test_where_nothing_was_compiled_there_is_no_library(tmp_path):
    assert load(tmp_path / LIBRARY_NAME) is None


def test_without_a_compiler_or_with_code_that_it_refuses_a_build_says_so(tmp_path, monkeypatch):
    with pytest.raises(BuildError, match="no-such-flag"):
        build(tmp_path / LIBRARY_NAME, ["--no-such-flag"])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(BuildError, match="no C compiler"):
        find_compiler()
