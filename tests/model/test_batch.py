"""A step as index arrays, and tables that contradict the step."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Corruption
from engine.ids import BlockId
from engine.kv.page_table import PageEntry
from engine.kv.step import SequenceStep
from engine.kv.tensors import KvStore
from engine.model.batch import build_batch
from tests.laws.law_model import law_spec
from tests.model.support import draw, step

STORE = KvStore(
    law_spec(), num_blocks=9, block_size=4, dtype=torch.float32, device=torch.device("cpu")
)


def sequence(ids, first_position, *entries, sample=None):
    return SequenceStep(
        token_ids=ids,
        first_position=first_position,
        entries=[PageEntry(BlockId(block), *rest) for block, *rest in entries],
        sample=sample,
    )


def places(blocks, slots):
    return STORE.rows(np.array(blocks), np.array(slots)).tolist()


def test_two_sequences_lie_behind_each_other():
    batch = build_batch(
        [
            sequence([7, 8, 9], 3, (2, 0, 3, 0), (5, 0, 1, 4), sample=draw()),
            sequence([6], 12, (1, 1, 2, 7), (4, 0, 2, 10)),
            sequence([1, 2], 0, (8, 2, 3, -2), sample=draw()),
        ],
        STORE,
    )
    assert batch.token_ids.tolist() == [7, 8, 9, 6, 1, 2]
    assert batch.positions.tolist() == [3, 4, 5, 12, 0, 1]
    assert batch.slots.tolist() == [3, 0, 1, 2, 2, 3]
    assert batch.write_rows.tolist() == places([2, 5, 5, 4, 8, 8], [3, 0, 1, 2, 2, 3])
    contexts = batch.contexts(STORE)
    assert contexts.rows.tolist() == places(
        [2, 2, 2, 2, 5, 5, 1, 1, 4, 4, 4, 8, 8], [0, 1, 2, 3, 0, 1, 1, 2, 0, 1, 2, 2, 3]
    )
    assert contexts.positions.tolist() == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 0, 1]
    assert contexts.bases.tolist() == [0, 0, 0, 0, 4, 4, 7, 7, 10, 10, 10, -2, -2]
    assert batch.pages.tolist() == [
        [2, 0, 3, 0],
        [5, 0, 1, 4],
        [1, 1, 2, 7],
        [4, 0, 2, 10],
        [8, 2, 3, -2],
    ]
    assert batch.page_starts.tolist() == [0, 2, 4, 5]
    assert batch.query_starts.tolist() == [0, 3, 4, 6]
    assert batch.context_starts.tolist() == [0, 6, 11, 13]
    assert batch.sampled.tolist() == [2, 5]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 29)), min_size=1, max_size=6))
def test_new_tokens_are_the_last_of_their_context(shapes):
    steps = [
        step(list(range(length)), min(start, length - 1), range(8), block_size=4)
        for length, start in shapes
    ]
    batch = build_batch(steps, STORE)
    contexts = batch.contexts(STORE)
    for place, one in enumerate(steps):
        mine = slice(*batch.query_starts[place : place + 2])
        context = slice(*batch.context_starts[place : place + 2])
        count = len(one.token_ids)
        assert batch.token_ids[mine].tolist() == one.token_ids
        # ids were made equal to positions
        assert batch.positions[mine].tolist() == one.token_ids
        assert batch.write_rows[mine].tolist() == contexts.rows[context][-count:].tolist()
        assert contexts.positions[context].tolist() == list(range(one.token_ids[-1] + 1))


@pytest.mark.parametrize(
    "wrong",
    [
        sequence([], 0, (0, 0, 0, 0)),
        sequence([1], 0),
        sequence([1, 2, 3], 0, (0, 0, 1, 0)),
        sequence([1], 1, (0, 0, 0, 0)),
        sequence([1, 2], 3, (0, 0, 3, 0), (1, 0, 0, 5)),
        sequence([1], 0, (9, 0, 0, 0)),
        sequence([1], 0, (-1, 0, 0, 0)),
        sequence([1], 4, (0, 0, 4, 0)),
        sequence([1], 0, (0, 1, 0, 0)),
        sequence([1], 0, (0, -1, 0, 0)),
        sequence([1], -1, (0, 0, 0, -1)),
    ],
    ids=[
        "no token",
        "no entry",
        "fewer slots than tokens",
        "another first position",
        "hole among new tokens",
        "block beyond the store",
        "negative block",
        "slot beyond the block",
        "empty range",
        "negative slot",
        "negative position",
    ],
)
def test_contradicting_table_is_corruption(wrong):
    fine = sequence([5], 2, (3, 0, 2, 0))
    build_batch([fine], STORE)
    with pytest.raises(Corruption):
        build_batch([fine, wrong], STORE)
