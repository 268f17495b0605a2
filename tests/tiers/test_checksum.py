"""Every small change of a block changes its checksum."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.tiers.disk import checksum


@given(st.binary(min_size=1, max_size=300), st.data())
def test_any_one_byte_that_changes_is_seen(data: bytes, draw: st.DataObject) -> None:
    block = np.frombuffer(data, dtype=np.uint8)
    other = block.copy()
    at = draw.draw(st.integers(0, len(data) - 1))
    other[at] ^= draw.draw(st.integers(1, 255))
    assert checksum(other) != checksum(block)


def test_length_order_and_zeros_count() -> None:
    zeros = [checksum(np.zeros(size, dtype=np.uint8)) for size in range(40)]
    assert len(set(zeros)) == 40
    words = np.arange(64, dtype=np.uint8)
    assert checksum(words) != checksum(np.roll(words, 8))
    assert checksum(words) == checksum(words.copy())
    assert 0 <= checksum(words) < 2**64
