"""Tile sizes, splits and tables: pure, so without Triton."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.attention.triton.tables import TILE, decoding, page_rows, tiles_of
from engine.model.attention.triton.tiling import (
    MAX_DECODE_TOKENS,
    Shapes,
    decode_tiling,
    prefill_tiling,
)
from engine.model.batch import Batch
from tests.attention.entries import entry, straight

HOPPER, AMPERE, ADA = 227 * 1024, 163 * 1024, 99 * 1024


def shapes(**changes):
    usual = {
        "group": 4,
        "head_dim": 128,
        "page_size": 16,
        "itemsize": 2,
        "shared_bytes": HOPPER,
    }
    return Shapes(**usual | changes)


@given(
    st.integers(1, 130),
    st.integers(1, 128).map(lambda half: 2 * half),
    st.integers(1, 1024),
    st.sampled_from([2, 4]),
    st.sampled_from([HOPPER, AMPERE, ADA]),
)
def test_tiles_are_what_a_tensor_core_takes(group, head_dim, page_size, itemsize, shared_bytes):
    mine = Shapes(
        group=group,
        head_dim=head_dim,
        page_size=page_size,
        itemsize=itemsize,
        shared_bytes=shared_bytes,
    )
    assert mine.padded_dim >= max(16, head_dim)
    for tiling in (decode_tiling(mine), prefill_tiling(mine)):
        for size in (tiling.rows, tiling.slots, mine.padded_dim):
            assert size >= 16
            assert size & (size - 1) == 0
        assert tiling.queries(group) >= 1
        # a query that is turned once for a tile of keys needs them to be of one page
        assert tiling.turn_keys or page_size % tiling.slots == 0
        # no tile of keys reaches over a split
        assert tiling.split_pages * page_size % tiling.slots == 0


@pytest.mark.parametrize(
    ("page_size", "slots", "turn_keys"),
    [
        (16, 16, False),
        (48, 16, False),
        (96, 32, False),
        (256, 64, False),
        (8, 32, True),
        (1, 32, True),
        (17, 32, True),
    ],
)
def test_decode_turns_queries_where_a_tile_divides_the_page(page_size, slots, turn_keys):
    tiling = decode_tiling(shapes(page_size=page_size))
    assert (tiling.slots, tiling.turn_keys) == (slots, turn_keys)


@pytest.mark.parametrize("page_size", [1, 3, 8, 16, 17, 64, 256, 500, 1024])
def test_splits_have_about_as_many_tokens_whatever_the_page(page_size):
    tokens = decode_tiling(shapes(page_size=page_size)).split_pages * page_size
    assert 256 <= tokens <= 16_000
    if page_size <= 256 and page_size & (page_size - 1) == 0:
        assert tokens == 512


def test_prefill_tiles_follow_the_shared_memory_of_the_card():
    rows = [prefill_tiling(shapes(shared_bytes=size)).rows for size in (HOPPER, AMPERE, ADA)]
    assert rows == [128, 64, 64]


def test_the_heads_of_a_group_stay_together():
    for group, queries in ((1, 16), (3, 5), (4, 4), (8, 2), (16, 1), (71, 1)):
        assert decode_tiling(shapes(group=group)).queries(group) == queries


def batch_of(tables, counts):
    """A batch with just what tables are made of."""
    pages = np.array([page for entries in tables for page in entries], dtype=np.int64)
    lengths = [sum(last - first + 1 for _, first, last, _ in entries) for entries in tables]
    positions = [
        [base + slot for _, first, last, base in entries for slot in range(first, last + 1)]
        for entries in tables
    ]
    new = [place for mine, count in zip(positions, counts, strict=True) for place in mine[-count:]]
    none = np.zeros(0, dtype=np.int64)
    return Batch(
        token_ids=none,
        positions=np.array(new),
        slots=none,
        write_rows=none,
        pages=pages,
        page_starts=np.cumsum([0, *map(len, tables)]),
        query_starts=np.cumsum([0, *counts]),
        context_starts=np.cumsum([0, *lengths]),
        sampled=none,
    )


TABLES = [
    [entry(9, 2, 3, -2), entry(4, 0, 3, 2), entry(7, 1, 1, 5)],
    straight([9], 4)[0],
]


def test_a_page_knows_how_many_tokens_come_before_it():
    assert page_rows(batch_of(TABLES, [1, 1])).tolist() == [
        [9, 2, 3, -2, 0],
        [4, 0, 3, 2, 2],
        [7, 1, 1, 5, 6],
        [2, 0, 3, 0, 0],
        [1, 0, 3, 4, 4],
        [0, 0, 0, 8, 8],
    ]


def test_a_tile_ends_at_the_page_of_its_last_query_and_begins_at_its_first_ones_window():
    batch = batch_of(TABLES, [1, 5])
    tiles = tiles_of(batch, np.array([0, 1]), queries_per_tile=2, split_pages=2, window=3)
    rows = [dict(zip(TILE, row, strict=True)) for row in tiles.rows.tolist()]
    assert [row["first_query"] for row in rows] == [0, 1, 3, 5]
    assert [row["queries"] for row in rows] == [1, 2, 2, 1]
    assert [row["first_page"] for row in rows] == [0, 3, 3, 3]
    assert [row["pages"] for row in rows] == [3, 2, 2, 3]
    assert [row["ordinal"] for row in rows] == [6, 4, 6, 8]
    assert [row["position"] for row in rows] == [6, 4, 6, 8]
    # windows begin at positions 4, 2, 4 and 6
    assert [row["window_page"] for row in rows] == [1, 0, 1, 1]
    # splits: 2, 1, 1, 2
    assert [row["part"] for row in rows] == [0, 2, 4, 6]
    assert (tiles.parts, tiles.splits) == (8, 2)
    assert tiles.rows.dtype == np.int32


def test_some_of_the_sequences_and_no_window():
    batch = batch_of(TABLES, [1, 5])
    tiles = tiles_of(batch, np.array([1]), queries_per_tile=5, split_pages=0, window=None)
    assert tiles.rows.tolist() == [[1, 5, 0, 3, 3, 0, 4, 4]]
    assert tiles.splits == 1


@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(1, 4))
def test_splits_depend_on_the_own_context_only(lengths, queries):
    tables = straight(lengths, 4)
    batch = batch_of(tables, [1] * len(lengths))
    common = {"queries_per_tile": queries, "split_pages": 3, "window": None}
    together = tiles_of(batch, np.arange(len(lengths)), **common).rows
    for mine, table in zip(together, tables, strict=True):
        alone = tiles_of(batch_of([table], [1]), np.array([0]), **common).rows[0]
        assert mine[4:].tolist() == alone[4:].tolist()


def test_a_token_and_its_drafts_are_decoded():
    batch = batch_of(straight([40, 40, 40], 4), [1, MAX_DECODE_TOKENS, MAX_DECODE_TOKENS + 1])
    assert decoding(batch).tolist() == [True, True, False]
