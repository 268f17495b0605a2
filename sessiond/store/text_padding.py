"""Lists of few lengths for SQL's IN, so that a statement has few texts. Pure.

Each length is a text of its own, and databases, drivers and connections keep what they made of
each for when it comes again: up to a number of texts, however large these are.
"""

from collections.abc import Collection
from typing import TypeVar

T = TypeVar("T")

_LENGTHS = (0, 1, 4, 16, 64, 256)


def padded(values: Collection[T]) -> list[T]:
    """The values, the last of them repeated: 0, 1, 4, 16, 64 or a multiple of 256 in all."""
    found = list(values)
    count = len(found)
    most = _LENGTHS[-1]
    length = next((some for some in _LENGTHS if some >= count), -(-count // most) * most)
    return found + found[-1:] * (length - count)
