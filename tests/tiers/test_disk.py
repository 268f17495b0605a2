"""The disk tier's file: what was written is read, anything else is noticed."""

import os
from pathlib import Path

import numpy as np
import pytest

from engine.kv.tiers.disk import FILE_NAME, DiskStore, TierBusyError
from engine.kv.tiers.store import Label
from tests.tiers.support import Shelf

BLOCK = 10_000
SLOT = 3 * 4096
MODEL = b"m" * 32
KEYS = [bytes([number]) * 32 for number in range(20)]
LABELS = [Label(key, bytes([number]) * 8) for number, key in enumerate(KEYS)]


def store(folder: Path, slots: int = 12, *, fingerprint: bytes = MODEL) -> DiskStore:
    return DiskStore(
        folder, limit_bytes=4096 + slots * SLOT, block_bytes=BLOCK, fingerprint=fingerprint
    )


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(20, BLOCK)


def read(disk: DiskStore, slots: list[int], keys: list[bytes]) -> tuple[list[bool], list[int]]:
    """Whether each was good, and the first byte of what came."""
    target = Shelf(len(slots), BLOCK)
    target.data[:] = 255
    good = disk.read(slots, keys, target, range(len(slots)))
    for row in target.data:
        assert (row == row[0]).all()
    return good, target.data[:, 0].tolist()


def test_blocks_come_back_from_wherever_they_lie(tmp_path: Path, shelf: Shelf) -> None:
    disk = store(tmp_path)
    slots = [3, 4, 5, 9, 1, 0, 2, 10, 11, 6]
    assert disk.write(slots, LABELS[:10], shelf, range(10)) == [True] * 10
    assert read(disk, slots, KEYS[:10]) == ([True] * 10, list(range(10)))
    assert read(disk, [9, 0], [KEYS[3], KEYS[5]]) == ([True, True], [3, 5])
    disk.close()


def test_a_longer_run_than_one_call_moves(tmp_path: Path, shelf: Shelf) -> None:
    disk = store(tmp_path, slots=20)
    assert disk.write(range(20), LABELS, shelf, range(20)) == [True] * 20
    assert read(disk, list(range(20)), KEYS) == ([True] * 20, list(range(20)))
    disk.close()


def test_what_was_written_is_found_again_oldest_first(tmp_path: Path, shelf: Shelf) -> None:
    disk = store(tmp_path)
    assert disk.scan() == {}
    disk.write([5, 6], LABELS[:2], shelf, [0, 1])
    disk.write([2], LABELS[2:3], shelf, [2])
    disk.write([5], LABELS[3:4], shelf, [3])
    disk.close()
    disk = store(tmp_path)
    assert list(disk.scan().items()) == [(6, LABELS[1]), (2, LABELS[2]), (5, LABELS[3])]
    disk.write([7], LABELS[4:5], shelf, [4])
    assert list(disk.scan().values()) == LABELS[1:5], "numbers go on"
    disk.write([11], LABELS[1:2], shelf, [1])
    assert disk.scan()[11] == LABELS[1]
    assert 6 not in disk.scan(), "the older of two slots with one key"
    disk.close()


@pytest.mark.parametrize("where", ["first byte", "last byte", "key", "checksum", "header"])
def test_a_changed_byte_makes_a_block_bad(tmp_path: Path, shelf: Shelf, where: str) -> None:
    disk = store(tmp_path)
    disk.write([0, 1], LABELS[:2], shelf, [0, 1])
    disk.close()
    end = 4096 + 2 * SLOT
    at = {
        "first byte": 4096 + SLOT,
        "last byte": 4096 + SLOT + BLOCK - 1,
        "header": end - 1,
        "checksum": end - 5,
        "key": end - 30,
    }[where]
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    disk = store(tmp_path)
    assert read(disk, [0, 1], KEYS[:2]) == ([True, False], [0, 255]), "nothing bad is handed on"
    disk.close()


def test_a_write_that_was_cut_short_is_noticed(tmp_path: Path, shelf: Shelf) -> None:
    disk = store(tmp_path)
    disk.write([0, 1], LABELS[:2], shelf, [0, 1])
    disk.close()
    os.truncate(tmp_path / FILE_NAME, 4096 + SLOT + 5000)
    disk = store(tmp_path)
    assert list(disk.scan().values()) == LABELS[:1]
    assert read(disk, [0], KEYS[:1])[0] == [True]
    assert read(disk, [1], KEYS[1:2])[0] == [False]
    disk.close()


def test_a_slot_that_is_another_keys_by_now_is_not_used(tmp_path: Path, shelf: Shelf) -> None:
    disk = store(tmp_path)
    disk.write([0], LABELS[:1], shelf, [0])
    assert read(disk, [0], KEYS[1:2]) == ([False], [255])
    disk.close()


@pytest.mark.parametrize("what", ["fingerprint", "block size", "not ours"])
def test_a_foreign_file_is_begun_anew(tmp_path: Path, shelf: Shelf, what: str) -> None:
    disk = store(tmp_path)
    disk.write([0], LABELS[:1], shelf, [0])
    disk.close()
    if what == "not ours":
        (tmp_path / FILE_NAME).write_bytes(b"something else" * 10_000)
    other = DiskStore(
        tmp_path,
        limit_bytes=100 * SLOT,
        block_bytes=BLOCK - (what == "block size"),
        fingerprint=b"o" * 32 if what == "fingerprint" else MODEL,
    )
    assert other.scan() == {}
    assert other.file_bytes == 4096
    other.close()


def test_a_smaller_limit_shortens_the_file(tmp_path: Path, shelf: Shelf) -> None:
    disk = store(tmp_path, slots=10)
    disk.write(range(10), LABELS[:10], shelf, range(10))
    disk.close()
    disk = store(tmp_path, slots=4)
    assert (disk.capacity, disk.file_bytes) == (4, 4096 + 4 * SLOT)
    assert list(disk.scan().values()) == LABELS[:4]
    disk.close()


def test_only_one_process_uses_a_folder(tmp_path: Path) -> None:
    disk = store(tmp_path)
    with pytest.raises(TierBusyError, match="another process"):
        store(tmp_path)
    disk.close()
    store(tmp_path).close()


def test_a_limit_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"must be .* bytes or more"):
        store(tmp_path, slots=0)


def test_what_is_erased_is_zero_on_the_disk(tmp_path: Path) -> None:
    disk = store(tmp_path)
    shelf = Shelf(20, BLOCK)
    disk.write([0, 1, 2], LABELS[:3], shelf, [7, 8, 9])
    disk.erase([1])
    disk.close()
    raw = np.fromfile(tmp_path / FILE_NAME, dtype=np.uint8)
    assert not raw[4096 + SLOT : 4096 + 2 * SLOT].any()
    disk = store(tmp_path)
    assert list(disk.scan().values()) == [LABELS[0], LABELS[2]]
    disk.close()


def test_a_disk_that_fails_loses_blocks_and_nothing_else(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = store(tmp_path)
    disk.write([0], LABELS[:1], shelf, [0])

    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        assert disk.write([1, 2], LABELS[1:3], shelf, [1, 2]) == [False, False]
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", full)
        assert read(disk, [0], KEYS[:1]) == ([False], [255])
    assert read(disk, [0], KEYS[:1]) == ([True], [0])
    disk.close()


def test_file_systems_without_direct_access_will_do(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_open = os.open

    def no_direct(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return whole_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", no_direct)
    disk = store(tmp_path)
    disk.write([0], LABELS[:1], shelf, [3])
    assert read(disk, [0], KEYS[:1]) == ([True], [3])
    disk.close()
