"""The C library that gives back many blocks: under sanitizers, and where there is none."""

import os
import subprocess
import sys

import pytest

from engine.c_compiler import BuildError
from engine.memory import give_build
from engine.memory.give_build import LIBRARY_NAME, build
from engine.memory.give_library import load
from tests.kernels.test_sanitizers import sanitizer_runtime
from tests.memory.giving import give_library


def test_no_access_out_of_bounds_and_nothing_undefined(tmp_path):
    runtime = sanitizer_runtime("libasan.so")
    if runtime is None:
        pytest.skip("the compiler has no sanitizers")
    library = tmp_path / LIBRARY_NAME
    build(library, ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
    done = subprocess.run(
        [sys.executable, "-m", "tests.memory.giving", str(library)],
        env={
            **os.environ,
            "LD_PRELOAD": runtime,
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter keeps memory on purpose
            "PYTHONMALLOC": "malloc",  # its own arenas would hide what lies beside an array
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "clean" in done.stdout


def test_where_nothing_was_compiled_there_is_no_library(tmp_path):
    assert load(tmp_path / LIBRARY_NAME) is None


@pytest.mark.parametrize(
    "code", ["int sessiond_lists_bytes(void) { return 12; }", "int another(void) { return 0; }"]
)
def test_a_library_of_another_version_is_not_used(tmp_path, code, monkeypatch):
    give_library()  # a compiler is there
    source = tmp_path / "other.c"
    source.write_text(f'__attribute__((visibility("default"))) {code}\n')
    monkeypatch.setattr(give_build, "SOURCE", source)
    build(tmp_path / LIBRARY_NAME)
    assert load(tmp_path / LIBRARY_NAME) is None


def test_a_build_of_code_that_the_compiler_refuses_says_so(tmp_path):
    give_library()
    with pytest.raises(BuildError, match="no-such-flag"):
        build(tmp_path / LIBRARY_NAME, ["--no-such-flag"])


def test_a_build_without_a_compiler_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(BuildError, match="no C compiler"):
        build(tmp_path / LIBRARY_NAME)
