"""Both backends equal dense attention over any page tables, and never look into unused slots."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ids import BlockId
from engine.kv.page_table import PageEntry
from engine.kv.step import SequenceStep
from engine.kv.tensors import KvStore
from engine.model.attention import gather
from engine.model.attention.gather import GatherAttention
from engine.model.attention.reference.backend import attend_with_sdpa
from engine.model.batch import build_batch
from engine.model.layers import Arithmetic, RotaryTable, TorchOps
from tests.laws.law_model import FixedOrderOps, attend_in_fixed_order, law_spec
from tests.model.support import table

SPEC = dataclasses.replace(law_spec(), sliding_window=11, window_layers=(False, True))
BLOCK, BLOCKS = 4, 24
CPU = torch.device("cpu")
BACKENDS = {
    "torch": (attend_with_sdpa, TorchOps()),
    "law": (attend_in_fixed_order, FixedOrderOps()),
}


def backend(name):
    attend_part, ops = BACKENDS[name]
    rotary = RotaryTable(SPEC.rope, SPEC.head_dim, dtype=torch.float64, device=CPU)
    arithmetic = Arithmetic(ops=ops, table=rotary, dtype=torch.float64, device=CPU)
    return GatherAttention(name, attend_part, SPEC, arithmetic)


def turned(x, positions):
    """Rotate [n, heads, dim], pairs as neighbours, written out as in the paper."""
    dim = x.shape[-1]
    frequencies = torch.tensor([SPEC.rope.theta ** (-i / dim) for i in range(0, dim, 2)])
    angles = torch.tensor(positions).double()[:, None, None] * frequencies
    even, odd = x[..., ::2], x[..., 1::2]
    result = torch.empty_like(x)
    result[..., ::2] = even * angles.cos() - odd * angles.sin()
    result[..., 1::2] = even * angles.sin() + odd * angles.cos()
    return result


def dense(queries, keys, values, positions, window):
    """Attend with raw q [n, heads, dim] and the whole context's raw K, V and positions."""
    n, context = len(queries), len(keys)
    group = SPEC.num_heads // SPEC.num_kv_heads
    queries, keys = turned(queries, positions[-n:]), turned(keys, positions)
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("nhd,thd->hnt", queries, keys) / SPEC.head_dim**0.5
    for query in range(n):
        last = context - n + query
        for key in range(context):
            outside = window is not None and positions[last] - positions[key] >= window
            if key > last or outside:
                scores[:, query, key] = -torch.inf
    return torch.einsum("hnt,thd->nhd", scores.softmax(-1), values).flatten(1)


class Memory:
    """A store full of NaN, except what the tables name; raw K and V by (block, slot)."""

    def __init__(self, tables, seed=0):
        generator = torch.Generator().manual_seed(seed)
        shape = (BLOCKS, BLOCK, SPEC.num_kv_heads, SPEC.head_dim)
        self.keys, self.values = (
            torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)
        )
        self.store = KvStore(
            SPEC, num_blocks=BLOCKS, block_size=BLOCK, dtype=torch.float64, device=CPU
        )
        stored = turned(
            self.keys.flatten(0, 1), [slot for _ in range(BLOCKS) for slot in range(BLOCK)]
        ).view(shape)
        for layer in range(SPEC.num_layers):
            keys, values = self.store.layer(layer)
            keys.fill_(torch.nan)
            values.fill_(torch.nan)
            for block, first, last, _ in (entry for entries in tables for entry in entries):
                keys[block, first : last + 1] = stored[block, first : last + 1]
                values[block, first : last + 1] = self.values[block, first : last + 1]

    def context(self, entries):
        places = [
            (b, slot, base + slot) for b, f, last, base in entries for slot in range(f, last + 1)
        ]
        blocks, slots, positions = zip(*places, strict=True)
        return self.keys[blocks, slots], self.values[blocks, slots], list(positions)


def steps_of(tables, counts):
    steps = []
    for entries, count in zip(tables, counts, strict=True):
        positions = [base + slot for _, f, last, base in entries for slot in range(f, last + 1)]
        steps.append(
            SequenceStep(
                token_ids=[0] * count,
                first_position=positions[-count],
                entries=entries,
                sample=None,
            )
        )
    return steps


def check(name, tables, counts):
    memory = Memory(tables)
    batch = build_batch(steps_of(tables, counts), memory.store)
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(
        (sum(counts), SPEC.num_heads, SPEC.head_dim), generator=generator, dtype=torch.float64
    )
    step = backend(name).prepare(batch, memory.store)
    for layer, window in enumerate((None, SPEC.sliding_window)):
        ours = step.attend(layer, turned(queries, batch.positions.tolist()))
        start = 0
        for entries, count in zip(tables, counts, strict=True):
            theirs = dense(queries[start : start + count], *memory.context(entries), window)
            torch.testing.assert_close(ours[start : start + count], theirs, atol=1e-10, rtol=0)
            start += count


@st.composite
def page_table(draw):
    """Blocks anywhere, any valid ranges, holes between positions, the end contiguous."""
    entries, position = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 5))):
        first = draw(st.integers(0, BLOCK - 1))
        last = draw(st.integers(first, BLOCK - 1))
        position += draw(st.sampled_from([0, 0, 3]))
        entries.append(PageEntry(draw(blocks()), first, last, position - first))
        position += last - first + 1
    for _ in range(draw(st.integers(0, 2))):
        entries.append(PageEntry(draw(blocks()), 0, BLOCK - 1, position))
        position += BLOCK
    entries.append(PageEntry(draw(blocks()), 0, draw(st.integers(0, BLOCK - 1)), position))
    return entries


def blocks():
    return st.integers(0, BLOCKS - 1).map(BlockId)


def newest(entries):
    """How many tokens at the end have positions without a hole."""
    positions = [base + slot for _, f, last, base in entries for slot in range(f, last + 1)]
    count = 1
    while count < len(positions) and positions[-count - 1] == positions[-count] - 1:
        count += 1
    return count


@pytest.mark.parametrize("name", BACKENDS)
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_page_tables_equal_dense_attention(name, data):
    tables = data.draw(st.lists(page_table(), min_size=1, max_size=4))
    counts = [data.draw(st.integers(1, newest(entries))) for entries in tables]
    check(name, tables, counts)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_block_serves_at_any_base(name):
    """The same block at another base is what a fresh rotation at those positions would be."""
    at_start = [PageEntry(BlockId(3), 0, 3, 0), PageEntry(BlockId(5), 0, 1, 4)]
    moved = [PageEntry(BlockId(3), 0, 3, 1000), PageEntry(BlockId(5), 0, 1, 1004)]
    early = [PageEntry(BlockId(3), 2, 3, -2), PageEntry(BlockId(5), 0, 1, 2)]
    check(name, [at_start, moved, early], [1, 2, 1])


@pytest.mark.parametrize("name", BACKENDS)
def test_many_single_tokens_of_very_different_lengths(name, monkeypatch):
    monkeypatch.setattr(gather, "MAX_GATHERED_TOKENS", 40)
    tables = [table(range(24), length, BLOCK) for length in (1, 2, 90, 17, 16, 33, 3, 60, 5, 1)]
    check(name, tables, [1] * len(tables))


def test_groups_bound_padding_and_rows():
    tables = [table(range(24), length, BLOCK) for length in (1, 2, 90, 17, 16, 33, 3, 60, 5, 1, 9)]
    counts = [1] * 10 + [4]
    store = Memory(tables).store
    batch = build_batch(steps_of(tables, counts), store)
    groups = gather._groups(batch)  # noqa: SLF001 -- a part of a step
    lengths = np.diff(batch.context_starts)
    assert sorted(member for members in groups for member in members) == list(range(11))
    assert [10] in [members.tolist() for members in groups]
    for members in groups:
        assert 2 * lengths[members].min() >= lengths[members].max()
