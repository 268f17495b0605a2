"""The C library that gives back many blocks: under sanitizers, and where there is none."""

from functools import partial

import pytest

from engine.kv import free_library_build
from engine.kv.free_library import load
from engine.kv.free_library_build import LIBRARY_NAME, build
from engine.system.c_compiler import BuildError
from tests.kv.freeing import give_library
from tests.sanitizers import drive


def test_no_access_out_of_bounds_and_nothing_undefined(tmp_path):
    said = drive(
        "tests.kv.freeing",
        tmp_path / LIBRARY_NAME,
        partial(build, flags=["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]),
        PYTHONMALLOC="malloc",  # its own arenas would hide what lies beside an array
    )
    assert "clean" in said


def test_where_nothing_was_compiled_there_is_no_library(tmp_path):
    assert load(tmp_path / LIBRARY_NAME) is None


@pytest.mark.parametrize(
    "code", ["int sessiond_lists_bytes(void) { return 12; }", "int another(void) { return 0; }"]
)
def test_a_library_of_another_version_is_not_used(tmp_path, code, monkeypatch):
    give_library()  # a compiler is there
    source = tmp_path / "other.c"
    source.write_text(f'__attribute__((visibility("default"))) {code}\n')
    monkeypatch.setattr(free_library_build, "SOURCE", source)
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
