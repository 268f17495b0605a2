"""Token ids as bytes: unsigned 32 bit, little endian. Pure."""

import sys
from array import array
from collections.abc import Iterable, Sequence

_FORM = next(code for code in "IL" if array(code).itemsize == 4)
ID_BYTES = 4


def pack(ids: Sequence[int]) -> bytes:
    """Four bytes per id."""
    return _little_endian(array(_FORM, ids)).tobytes()


def unpack(parts: Iterable[bytes]) -> list[int]:
    """The ids of all parts, joined."""
    return _little_endian(array(_FORM, b"".join(parts))).tolist()


def _little_endian(ids: "array[int]") -> "array[int]":
    """Swap the bytes on a big-endian machine; reading and writing use the same swap."""
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
