"""PrefixCache: the longest known prefix, and one block per key."""

import pytest

from engine.kv.prefix_cache import BlockHashedTwice, PrefixCache

KEYS = [bytes([number]) * 32 for number in range(5)]


def filled(*indexes: int) -> PrefixCache:
    cache = PrefixCache()
    for index in indexes:
        assert cache.add(KEYS[index], 10 + index)
    return cache


def test_finds_the_longest_prefix_without_a_gap() -> None:
    cache = filled(0, 1, 3)
    assert cache.longest(KEYS, 0, 5) == [10, 11]
    assert cache.longest(KEYS, 0, 1) == [10]
    assert cache.longest(KEYS, 2, 5) == []
    assert cache.longest(KEYS, 3, 5) == [13]


def test_a_second_block_of_equal_contents_stays_private() -> None:
    cache = filled(0)
    assert not cache.add(KEYS[0], 99)
    assert cache.longest(KEYS, 0, 1) == [10]
    assert cache.key_of(99) is None


def test_a_hashed_block_gets_no_second_key() -> None:
    cache = filled(0)
    with pytest.raises(BlockHashedTwice) as raised:
        cache.add(KEYS[1], 10)
    assert raised.value.block == 10


def test_a_forgotten_block_is_found_no_more() -> None:
    cache = filled(0, 1)
    cache.forget(10)
    assert cache.longest(KEYS, 0, 2) == []
    assert cache.key_of(10) is None
    assert list(cache.items()) == [(KEYS[1], 11)]
    assert len(cache) == 1
    assert cache.add(KEYS[0], 20)
