"""Pads lists for SQL's IN to few lengths, so that a statement has few texts. Pure.

Each length is a statement text of its own. Databases, drivers and connections cache compiled
statements up to a number of texts, whatever their size.
"""

from collections.abc import Collection
from typing import TypeVar

T = TypeVar("T")

_LENGTHS = (0, 1, 4, 16, 64, 256)


def padded(values: Collection[T]) -> list[T]:
    """The values, the last one repeated up to a length of 0, 1, 4, 16, 64 or a multiple of 256."""
    found = list(values)
    count = len(found)
    most = _LENGTHS[-1]
    length = next((some for some in _LENGTHS if some >= count), -(-count // most) * most)
    return found + found[-1:] * (length - count)
