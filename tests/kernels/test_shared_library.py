"""R10: a library that was cut short is refused in words instead of ending the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.kv import free_library
from engine.kv.free_library_build import LIBRARY
from engine.model.kernels.library import LibraryMissingError, load_library
from engine.system.shared_library import check_whole


@pytest.fixture
def whole() -> bytes:
    if not LIBRARY.exists():
        pytest.skip("it was not compiled here")
    return LIBRARY.read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_library_that_was_cut_short_is_refused(
    tmp_path: Path, whole: bytes, share: float
) -> None:
    path = tmp_path / "short.so"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(OSError, match="must"):
        check_whole(path)
    assert free_library.load(path) is None, "blocks are freed one by one instead"
    with pytest.raises(LibraryMissingError, match="must"):
        load_library(path)


def test_a_whole_library_is_loaded(whole: bytes) -> None:
    check_whole(LIBRARY)
    assert free_library.load(LIBRARY) is not None


@pytest.mark.usefixtures("whole")
def test_another_library_is_refused_for_what_it_lacks() -> None:
    with pytest.raises(LibraryMissingError, match="engine_supports"):
        load_library(LIBRARY)


@pytest.mark.parametrize(
    "data", [b"\x7fELF", b"\x7fELF\x02\x01" + bytes(100), b"text", b"\xff" * 80]
)
def test_what_is_no_library_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "other.so"
    path.write_bytes(data)
    with pytest.raises(LibraryMissingError):
        load_library(path)


def test_an_engine_whose_library_is_damaged_frees_blocks_all_the_same(
    tmp_path: Path, whole: bytes
) -> None:
    """In a process of its own: this one has the whole library mapped."""
    path = tmp_path / "short.so"
    path.write_bytes(whole[: len(whole) // 2])
    code = f"""
from pathlib import Path
from engine.kv import free_library
from engine.kv.block_pool import BlockPool
pool = BlockPool(64, lambda block: None, library=free_library.load(Path({str(path)!r})))
pool.free(pool.try_take(64))
assert pool.free_count == 64
"""
    subprocess.run([sys.executable, "-c", code], check=True)
