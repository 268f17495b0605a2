"""Which steps are captured, and which graph serves a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.graph_buckets import (
    MOST_PAGES,
    SHORT_CONTEXT,
    Bucket,
    choose_bucket,
    graph_sizes,
    make_buckets,
)


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (20, (1, 2, 4, 8, 16, 20)),
        (32, (1, 2, 4, 8, 16, 24, 32)),
    ],
)
def test_sizes_rise_to_the_most_turns(most, sizes):
    assert graph_sizes("", most) == sizes


def test_sizes_that_are_wished_for_are_taken_in_their_order():
    assert graph_sizes("16, 1,4", 32) == (1, 4, 16)


def test_each_size_has_a_graph_for_short_contexts_and_one_for_all():
    buckets = make_buckets((1, 4), max_model_len=32_768, block_size=16)
    assert buckets == (
        Bucket(rows=1, pages=257, longest=257),
        Bucket(rows=1, pages=2049, longest=2049),
        Bucket(rows=4, pages=1028, longest=257),
        Bucket(rows=4, pages=8196, longest=2049),
    )
    assert len(make_buckets((1, 4), max_model_len=SHORT_CONTEXT, block_size=16)) == 2


def test_room_for_page_tables_is_bounded_and_holds_one_context_of_any_length():
    (_, long) = make_buckets((64,), max_model_len=131_072, block_size=16)
    assert long.pages == MOST_PAGES
    (_, longer) = make_buckets((1,), max_model_len=2**20, block_size=16)
    assert longer.pages == longer.longest == 2**16 + 1


@given(
    most=st.integers(1, 64),
    length=st.sampled_from([100, 4096, 5000, 40_000]),
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=70),
)
def test_the_narrowest_that_fits_is_chosen(most, length, lengths):
    buckets = make_buckets(graph_sizes("", most), max_model_len=length, block_size=16)
    step = {"rows": len(lengths), "pages": sum(lengths), "longest": max(lengths)}
    chosen = choose_bucket(buckets, **step)

    def fits(bucket):
        return all(getattr(bucket, name) >= value for name, value in step.items())

    if chosen is None:
        assert not any(fits(bucket) for bucket in buckets)
        return
    assert fits(chosen)
    assert all(bucket.rows >= chosen.rows for bucket in buckets if fits(bucket))
    narrower = (b for b in buckets if b.rows == chosen.rows and b.longest < chosen.longest)
    assert not any(fits(bucket) for bucket in narrower)
