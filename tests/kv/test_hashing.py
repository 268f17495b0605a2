"""Chain keys: equal exactly when everything that KV depends on is equal."""

import hashlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ids import BlockId
from engine.kv.hashing import ROOT, ChainHasher, KeyExtras
from engine.kv.partition import BadSpansError, DensePartition, Partition
from engine.kv.prefix_cache import PrefixCache

PLAIN = KeyExtras(fingerprint="model|torch|float32", salt=b"tenant a")


def keys(extras: KeyExtras, ids: list[int], block_size: int = 4) -> list[bytes]:
    partition = Partition(block_size, ChainHasher(extras))
    return partition.keys(ids, partition.complete_count(len(ids)))


def test_the_same_prefix_has_the_same_keys() -> None:
    assert keys(PLAIN, [1, 2, 3, 4, 5, 6, 7, 8]) == keys(PLAIN, [1, 2, 3, 4, 5, 6, 7, 8, 9])


def test_a_block_after_another_prefix_has_another_key() -> None:
    one, other = keys(PLAIN, [1, 2, 3, 4, 5, 6, 7, 8]), keys(PLAIN, [1, 2, 3, 9, 5, 6, 7, 8])
    assert one[0] != other[0]
    assert one[1] != other[1]


def test_every_extra_is_in_the_key() -> None:
    variants = [
        PLAIN,
        KeyExtras(fingerprint="model|torch|bfloat16", salt=b"tenant a"),
        KeyExtras(fingerprint="model|torch|float32", salt=b"tenant b"),
        KeyExtras(fingerprint="model|torch|float32", salt=b"tenant a", adapter=b"x"),
        KeyExtras(fingerprint="model|torch|float32", salt=b"tenant a", lineage=b"x"),
    ]
    assert len({keys(extras, [1, 2, 3, 4])[0] for extras in variants}) == len(variants)


def dense_keys(ids: list[int], block_size: int = 4) -> list[bytes]:
    partition = DensePartition(block_size, ChainHasher(PLAIN))
    return partition.keys(ids, partition.complete_count(len(ids)))


def test_the_position_is_in_the_key_only_where_kv_holds_it() -> None:
    hasher, ids = ChainHasher(PLAIN), [1, 2, 3, 4]
    assert len({hasher.key(ROOT, ids, base) for base in (None, 0, 4, 8)}) == 4
    assert not set(keys(PLAIN, ids * 3)) & set(dense_keys(ids * 3))
    assert dense_keys([*ids, 5, 6, 7, 8])[:1] == dense_keys(ids)


def test_after_an_edit_pages_without_holes_keep_the_keys_before_it_and_share_none_behind() -> None:
    ids = list(range(30))
    before = DensePartition(4, ChainHasher(PLAIN))
    keys_before = list(before.keys(ids, 7))
    after = before.edited(ids, [(9, 11), (20, 21)])
    left = [*ids[:9], *ids[11:20], *ids[21:], *range(50, 60)]
    assert (after.fixed_count, after.sealed_len, after.sealed_count) == (2, 27, 7)
    assert [after.page(index).start for index in range(9)] == [4 * index for index in range(9)]
    keys_after = after.keys(left, 9)
    assert keys_after[:2] == keys_before[:2]
    assert not set(keys_after[2:]) & {*keys_before, *dense_keys(left)}
    assert after.fresh_keys(left, 9) == after.copy().keys(left, 9) == keys_after
    other = before.edited(ids, [(9, 11)])
    assert other.keys(left, 9)[2:3] != keys_after[2:3], "the same ids, but they saw others"


def test_spans_that_do_not_fit_are_refused() -> None:
    partition = DensePartition(4, ChainHasher(PLAIN))
    for spans in ([(5, 3)], [(0, 31)], [(4, 8), (7, 9)]):
        with pytest.raises(BadSpansError):
            partition.edited(list(range(30)), spans)


def test_extras_are_length_prefixed() -> None:
    one = KeyExtras(fingerprint="", adapter=b"ab", salt=b"c")
    other = KeyExtras(fingerprint="", adapter=b"a", salt=b"bc")
    assert keys(one, [1, 2, 3, 4]) != keys(other, [1, 2, 3, 4])


def test_keys_are_extended_from_where_they_end() -> None:
    ids = list(range(40))
    partition = Partition(4, ChainHasher(PLAIN))
    for count in (0, 1, 1, 5, 10):
        assert len(partition.keys(ids, count)) == count
    assert partition.keys(ids, 10) == keys(PLAIN, ids)


@settings(derandomize=True)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1), st.lists(st.integers(0, 2**32 - 1)))
def test_different_ids_have_different_keys(one: list[int], other: list[int]) -> None:
    hasher = ChainHasher(PLAIN)
    assert len(hasher.key(ROOT, one)) == 32
    assert (hasher.key(ROOT, one) == hasher.key(ROOT, other)) == (one == other)


def test_t38_salts_whose_short_hashes_collide_part_their_keys_all_the_same() -> None:
    """T38: a key that held 16 bits of what tells tenants apart would give one the other's KV."""
    seen: dict[bytes, bytes] = {}
    for number in range(2**16 + 1):
        salt = number.to_bytes(4, "big") * 8
        short = hashlib.sha256(salt).digest()[:2]
        if short in seen:
            break
        seen[short] = salt
    one, other = (KeyExtras(fingerprint="m", salt=salt) for salt in (seen[short], salt))
    assert one.salt != other.salt
    first, second = keys(one, [1, 2, 3, 4])[0], keys(other, [1, 2, 3, 4])[0]
    assert first != second
    assert {len(first), len(second)} == {32}


def test_t38_no_byte_moves_from_one_field_of_a_key_into_another() -> None:
    """Every way to cut the same bytes into the four fields is another key."""
    text = b"abcdef"
    cuts = [
        sorted(places)
        for places in itertools.combinations_with_replacement(range(len(text) + 1), 3)
    ]
    extras = [
        KeyExtras(
            fingerprint=text[:a].decode(), adapter=text[a:b], salt=text[b:c], lineage=text[c:]
        )
        for a, b, c in cuts
    ]
    assert len({keys(one, [1, 2, 3, 4])[0] for one in extras}) == len(cuts)


def test_t35_what_one_adapter_computed_is_never_found_under_another() -> None:
    """llama.cpp#26207, vllm#42125: two digests that differ in a bit, and the model without any."""
    ids = list(range(64))
    digests = [bytes(32), bytes(31) + bytes([1]), b""]
    chains = []
    for adapter in digests:
        hasher, parent = ChainHasher(KeyExtras(fingerprint="m", salt=b"ann", adapter=adapter)), ROOT
        keys = []
        for start in range(0, 64, 16):
            parent = hasher.key(parent, ids[start : start + 16])
            keys.append(parent)
        chains.append(keys)
    cache = PrefixCache()
    for block, key in enumerate(chains[0]):
        cache.add(key, BlockId(block))
    assert [len(cache.longest(keys, 0, 4)) for keys in chains] == [4, 0, 0]
