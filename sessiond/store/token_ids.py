"""Token ids as bytes: unsigned 32 bit, little endian, nothing else. Pure."""

from collections.abc import Iterable, Sequence

import numpy as np

_FORM = np.dtype("<u4")
ID_BYTES = _FORM.itemsize


def pack(ids: Sequence[int]) -> bytes:
    """Four bytes per id."""
    return np.asarray(ids, dtype=_FORM).tobytes()


def unpack(parts: Iterable[bytes]) -> list[int]:
    """The ids of all parts, joined."""
    joined: list[int] = np.frombuffer(b"".join(parts), dtype=_FORM).tolist()
    return joined
