"""Our kernels equal dense attention in float64 for any shape, page and edit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.attention.gather import GatherAttention
from engine.model.attention.reference.backend import attend_with_sdpa
from tests.attention.entries import entry, straight
from tests.attention.paged import DEVICE, TOLERANCE, Paged, arithmetic_of, spec_of
from tests.soak import SOAK

LENGTHS = [1, 2, 15, 16, 17, 31, 33, 100]
GROUPS = [1, 2, 3, 4, 7, 8]
HEAD_DIMS = [16, 32, 64, 80, 96, 128]
PAGE_SIZES = [1, 3, 8, 16, 17, 32, 64, 256]


def test_single_tokens_of_odd_lengths():
    Paged(spec_of(), straight(LENGTHS), [1] * len(LENGTHS)).check()


def test_prompts_of_odd_lengths():
    Paged(spec_of(), straight(LENGTHS), LENGTHS).check()


def test_chunks_behind_contexts_beside_single_tokens():
    Paged(spec_of(kv_heads=2), straight([33, 100, 17, 40]), [1, 20, 9, 5]).check()


@pytest.mark.parametrize("group", GROUPS)
def test_queries_of_a_group_share_their_keys(group):
    Paged(spec_of(group=group), straight([33, 3, 34]), [1, 3, 20]).check()


@pytest.mark.parametrize("head_dim", [8, *HEAD_DIMS, 256])
def test_heads_of_any_even_size(head_dim):
    Paged(spec_of(head_dim=head_dim), straight([33, 20]), [1, 10]).check()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_pages_of_any_size(page_size):
    lengths = [page_size, page_size + 1, 37]
    Paged(spec_of(), straight(lengths, page_size), [1, 1, 11], page_size=page_size).check()


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.float8_e4m3fn),
        (torch.float16, torch.float8_e4m3fn),
        (torch.float32, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("page_size", [16, 3])
def test_types_of_16_and_8_bits(dtype, kv_dtype, page_size):
    tables = straight([33, 20], page_size)
    spec = spec_of(head_dim=32)
    Paged(spec, tables, [1, 10], page_size=page_size, dtype=dtype, kv_dtype=kv_dtype).check()


def test_a_block_serves_at_any_base():
    """The same block at position 0, far away, before its own start, and twice in one table."""
    at_start = [entry(0, 0, 15, 0), entry(1, 0, 1, 16)]
    far = [entry(0, 0, 15, 131_072), entry(1, 0, 1, 131_088)]
    early = [entry(0, 9, 15, -9), entry(1, 0, 1, 7)]
    twice = [entry(0, 2, 5, 1), entry(0, 9, 9, -2), entry(2, 0, 12, 8)]
    Paged(spec_of(), [at_start, far, early, twice], [1, 1, 2, 12]).check()


@st.composite
def edited_table(draw, page_size, blocks=6):
    """Any valid ranges of any blocks, holes between positions, the end contiguous."""
    entries, position = [], draw(st.integers(0, 40))
    for _ in range(draw(st.integers(0, 4))):
        first = draw(st.integers(0, page_size - 1))
        last = draw(st.integers(first, page_size - 1))
        position += draw(st.sampled_from([0, 0, 3, 70_000]))
        entries.append(entry(draw(st.integers(0, blocks - 1)), first, last, position - first))
        position += last - first + 1
    last = draw(st.integers(0, page_size - 1))
    return [*entries, entry(blocks, 0, last, position)]


@given(st.data())
@settings(max_examples=150 if SOAK else 10, derandomize=not SOAK)
def test_any_edited_tables(data):
    page_size = data.draw(st.sampled_from([3, 16, 17]))
    tables = data.draw(st.lists(edited_table(page_size), min_size=1, max_size=3))
    counts = [data.draw(st.integers(1, entries[-1].last + 1)) for entries in tables]
    Paged(spec_of(), tables, counts, page_size=page_size).check()


def test_equal_to_the_torch_backend():
    spec = spec_of(group=3)
    paged = Paged(spec, straight([33, 50]), [1, 40])
    torch_backend = GatherAttention("torch", attend_with_sdpa, spec, arithmetic_of(spec))
    theirs = torch_backend.prepare(paged.batch, paged.store)
    for layer in range(spec.num_layers):
        torch.testing.assert_close(
            paged.attended(layer),
            theirs.attend(layer, paged.queries.to(DEVICE)).cpu(),
            atol=TOLERANCE[torch.float32],
            rtol=0,
        )
