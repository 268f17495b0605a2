"""Calls `free_blocks.c`, where it was compiled. Loop thread only."""

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_int32, c_uint8
from pathlib import Path
from typing import TypeGuard

from engine.ids import BlockArray
from engine.kv.free_library_build import LIBRARY
from engine.system.shared_library import check_whole

Library = ctypes.PyDLL


class _Lists(Structure):
    """`Lists` of free_blocks.c."""

    _fields_ = (
        ("references", POINTER(c_int32)),
        ("hashed", POINTER(c_uint8)),
        ("older", POINTER(c_int32)),
        ("newer", POINTER(c_int32)),
        ("total", c_int32),
        ("oldest", c_int32),
        ("newest", c_int32),
        ("cached", c_int32),
    )


def load(path: Path = LIBRARY) -> Library | None:
    """The library; None where it is missing, damaged or another: blocks are freed one by one.

    It keeps the interpreter's lock: a call takes microseconds.
    """
    try:
        check_whole(path)
        library = Library(str(path))
        matches = library.sessiond_lists_bytes() == ctypes.sizeof(_Lists)
    except (OSError, AttributeError):
        return None
    if not matches:
        return None
    function = library.sessiond_free_blocks
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, c_int32, ctypes.c_void_p)
    function.restype = c_int32
    return library


class FreeMany:
    """Passes one pool's arrays, whose sizes must not change, to the library."""

    def __init__(
        self,
        library: Library,
        *,
        references: BlockArray,
        hashed: bytearray,
        older: BlockArray,
        newer: BlockArray,
    ) -> None:
        self._call = library.sessiond_free_blocks
        total = len(hashed)
        numbers = c_int32 * total
        self._lists = _Lists(
            numbers.from_buffer(references),
            (c_uint8 * total).from_buffer(hashed),
            numbers.from_buffer(older),
            numbers.from_buffer(newer),
            total,
        )
        self._at = ctypes.addressof(self._lists)

    def __call__(
        self, blocks: Sequence[int], oldest: int, newest: int, cached: int
    ) -> tuple[BlockArray, int, int, int] | None:
        """Free one reference to each block, the last first.

        `oldest` and `newest` are the ends of the list of cached blocks, which has `cached` entries.

        Returns:
            The blocks that became free, and the new values of the three. None, and nothing changed,
            if a number is not a block's, or a block has no reference.
        """
        try:
            row = blocks if _is_row(blocks) else array("i", blocks)
        except OverflowError:
            return None
        lists, freed = self._lists, row[:]
        lists.oldest, lists.newest, lists.cached = oldest, newest, cached
        count = self._call(self._at, row.buffer_info()[0], len(row), freed.buffer_info()[0])
        if count < 0:
            return None
        return freed[:count], lists.oldest, lists.newest, lists.cached


def _is_row(blocks: Sequence[int]) -> TypeGuard[BlockArray]:
    return isinstance(blocks, array) and blocks.typecode == "i"
