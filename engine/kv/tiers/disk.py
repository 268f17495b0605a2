"""The disk tier: one file of equal slots, each with a header and a checksum of its block."""

import fcntl
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.kv.tiers.store import Blocks, Bytes, Label

FILE_NAME = "kv-blocks.bin"

RUN = 8
"""Limit of blocks per call: single ones reach half of a disk's rate."""

_PAGE = 4096
_MAGIC = b"sessiond KV 2\0\0\0"
_HEAD = struct.Struct("<16sQ32s")
_HEADER = struct.Struct("<4sQ32s8sQ")
_SLOT_MAGIC = b"slot"
_CRC = struct.Struct("<I")

_WORD = 8


class TierBusyError(Exception):
    """Another process uses the folder."""


class _Slot(NamedTuple):
    number: int
    label: Label
    checksum: int


class DiskStore:
    """The file in `folder`; a file of another model or block size is replaced.

    `limit_bytes` limits the whole file, to the byte. Implements `BlockStore`.

    Raises:
        TierBusyError: another process has the file open.
        OSError: the folder can't be used, or the limit does not hold one block.
    """

    def __init__(
        self, folder: Path, *, limit_bytes: int, block_bytes: int, fingerprint: bytes
    ) -> None:
        self.block_bytes = block_bytes
        self.slot_bytes = -(-(block_bytes + _HEADER.size + _CRC.size) // _PAGE) * _PAGE
        self.capacity = max(0, limit_bytes - _PAGE) // self.slot_bytes
        if not self.capacity:
            raise OSError(
                f"its size must be {self.slot_bytes + _PAGE} bytes or more, one block "
                f"(got {limit_bytes})"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE_NAME
        self._file = _open(self.path)
        self._number = 0
        # each thread moves data through pages of its own
        self._writing, self._reading = (_pages(RUN * self.slot_bytes) for _ in range(2))
        try:
            self._begin(_HEAD.pack(_MAGIC, block_bytes, fingerprint))
        except BaseException:
            os.close(self._file)
            raise

    def _begin(self, head: bytes) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TierBusyError(f"{self.path} is used by another process") from error
        size = os.fstat(self._file).st_size
        page = self._reading[:_PAGE]
        if os.preadv(self._file, [page.data], 0) < _PAGE or page[: len(head)].tobytes() != head:
            os.ftruncate(self._file, 0)
            page[:] = 0
            page[: len(head)] = np.frombuffer(head, dtype=np.uint8)
            os.pwritev(self._file, [page.data], 0)
        elif size > _PAGE + self.capacity * self.slot_bytes:
            os.ftruncate(self._file, _PAGE + self.capacity * self.slot_bytes)

    @property
    def file_bytes(self) -> int:
        """Size of the file now."""
        return os.fstat(self._file).st_size

    def scan(self) -> dict[int, Label]:
        """Return the contents of the slots, oldest write first, as their headers say."""
        found: dict[bytes, tuple[int, int, Label]] = {}
        slots = (self.file_bytes - _PAGE) // self.slot_bytes
        page = self._reading[:_PAGE]
        for slot in range(slots):
            if os.preadv(self._file, [page.data], self._offset(slot + 1) - _PAGE) < _PAGE:
                break
            header = _unpack(page)
            if header is not None:
                seen = found.get(header.label.key, (-1,))
                if header.number > seen[0]:
                    found[header.label.key] = header.number, slot, header.label
        in_order = sorted(found.values())
        self._number = in_order[-1][0] if in_order else 0
        return {slot: label for _, slot, label in in_order}

    def write(
        self, slots: Sequence[int], labels: Sequence[Label], source: Blocks, blocks: Sequence[int]
    ) -> list[bool]:
        """See `BlockStore`."""
        good: list[bool] = []
        for first, count in _runs(slots):
            done = len(good)
            for index in range(count):
                self._fill(index, labels[done + index], source, blocks[done + index])
            written = self._write_run(self._writing[: count * self.slot_bytes], first)
            good += [written] * count
        return good

    def read(
        self, slots: Sequence[int], keys: Sequence[bytes], target: Blocks, blocks: Sequence[int]
    ) -> list[bool]:
        """See `BlockStore`."""
        good: list[bool] = []
        for first, count in _runs(slots):
            done = len(good)
            there = self._read_run(self._reading[: count * self.slot_bytes], first)
            for index in range(count):
                data = self._of_slot(self._reading, index)
                is_good = there and self._is_good(data, keys[done + index])
                if is_good:
                    target.write_block(blocks[done + index], data[: self.block_bytes])
                good.append(is_good)
        return good

    def erase(self, slots: Sequence[int]) -> None:
        """See `BlockStore`."""
        self._writing[: self.slot_bytes] = 0
        for slot in slots:
            self._write_run(self._writing[: self.slot_bytes], slot)

    def close(self) -> None:
        """See `BlockStore`."""
        os.close(self._file)

    # --- one slot ------------------------------------------------------------------------------

    def _offset(self, slot: int) -> int:
        return _PAGE + slot * self.slot_bytes

    def _of_slot(self, pages: Bytes, index: int) -> Bytes:
        return pages[index * self.slot_bytes : (index + 1) * self.slot_bytes]

    def _fill(self, index: int, label: Label, source: Blocks, block: int) -> None:
        slot = self._of_slot(self._writing, index)
        data = slot[: self.block_bytes]
        source.read_block(block, data)
        self._number += 1
        slot[self.block_bytes :] = 0
        _pack(slot[-_PAGE:], _Slot(self._number, label, checksum(data)))

    def _is_good(self, slot: Bytes, key: bytes) -> bool:
        header = _unpack(slot[-_PAGE:])
        return (
            header is not None
            and header.label.key == key
            and header.checksum == checksum(slot[: self.block_bytes])
        )

    def _write_run(self, pages: Bytes, first: int) -> bool:
        try:
            return os.pwritev(self._file, [pages.data], self._offset(first)) == len(pages)
        except OSError:  # full, or broken: KV that is not stored is recomputed
            return False

    def _read_run(self, pages: Bytes, first: int) -> bool:
        try:
            return os.preadv(self._file, [pages.data], self._offset(first)) == len(pages)
        except OSError:
            return False


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
    except OSError:  # not every file system supports it
        return os.open(path, flags, 0o600)


def _pages(size: int) -> Bytes:
    return np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8)  # aligned, as direct access needs


def _runs(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of neighbours, `RUN` at most."""
    order = enumerate(slots)
    for _, group in groupby(order, key=lambda pair: pair[1] - pair[0]):
        run = [slot for _, slot in group]
        for start in range(0, len(run), RUN):
            yield run[start], len(run[start : start + RUN])


def _pack(page: Bytes, slot: _Slot) -> None:
    """Write a header at the end of a slot's last page."""
    header = _HEADER.pack(_SLOT_MAGIC, slot.number, *slot.label, slot.checksum)
    header += _CRC.pack(zlib.crc32(header))
    page[-len(header) :] = np.frombuffer(header, dtype=np.uint8)


def _unpack(page: Bytes) -> _Slot | None:
    raw = page[-(_HEADER.size + _CRC.size) :].tobytes()
    header, (crc,) = raw[: _HEADER.size], _CRC.unpack(raw[_HEADER.size :])
    magic, number, key, owner, digest = _HEADER.unpack(header)
    if magic != _SLOT_MAGIC or crc != zlib.crc32(header):
        return None
    return _Slot(number, Label(key, owner), digest)


def checksum(data: Bytes) -> int:
    """Return a 64-bit checksum of a run of bytes."""
    whole = len(data) // _WORD * _WORD
    words = data[:whole].view(np.uint64)
    total = int(np.dot(words, _factors(len(words))))
    for index, byte in enumerate(data[whole:].tolist()):
        total += (byte + 1) * _TAIL_FACTORS[index]
    return (total + len(data) * _LENGTH_FACTOR) % 2**64


_LENGTH_FACTOR, *_TAIL_FACTORS = (
    2 * int(number) + 1
    for number in np.random.Generator(np.random.PCG64(1)).integers(2**63, size=_WORD)
)


@lru_cache(maxsize=4)  # one size per model
def _factors(count: int) -> npt.NDArray[np.uint64]:
    numbers = np.random.Generator(np.random.PCG64(2)).integers(2**63, size=count, dtype=np.uint64)
    return numbers * np.uint64(2) + np.uint64(1)
