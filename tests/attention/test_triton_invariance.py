"""A token's attention has the same bits alone, in a batch, among guesses, split or fixed."""

import pytest
import torch

from engine.model.attention.triton import launch, tiling
from engine.model.batch import build_batch
from tests.attention.entries import straight
from tests.attention.paged import DEVICE, WINDOW, Paged, spec_of
from tests.model.support import table

pytestmark = pytest.mark.second


@pytest.fixture(autouse=True)
def short_splits(monkeypatch):
    monkeypatch.setattr(tiling, "_SPLIT_TOKENS", 32)


def alone(paged, sequence):
    """The same memory and queries, as if the other sequences did not run."""
    start = sum(paged.counts[:sequence])
    one = Paged(paged.spec, paged.tables, paged.counts, page_size=paged.store.block_size)
    one.tables, one.counts = [paged.tables[sequence]], [paged.counts[sequence]]
    one.queries = paged.queries[start : start + one.counts[0]]
    one.batch = paged_batch(one)
    return one


def paged_batch(paged):
    return build_batch(paged.steps(), paged.store)


@pytest.mark.parametrize("page_size", [16, 3])
def test_splits_end_anywhere(page_size):
    lengths = [31, 32, 33, 63, 64, 65, 97, 130]
    Paged(spec_of(), straight(lengths, page_size), [1] * 8, page_size=page_size).check()


@pytest.mark.parametrize("page_size", [16, 3])
def test_alone_is_batched_to_the_bit(page_size):
    tables = straight([20, 33, 70, 130, 40], page_size)
    paged = Paged(spec_of(group=3), tables, [1, 2, 1, 1, 25], page_size=page_size)
    for layer in range(2):
        together = paged.attended(layer).split(paged.counts)
        for sequence, expected in enumerate(together):
            assert torch.equal(alone(paged, sequence).attended(layer), expected)


@pytest.mark.parametrize("page_size", [16, 17])
def test_drafts_are_decoded_to_the_bit(page_size):
    """Tokens of one step, of which the later are guesses, and the same token by token."""
    count, length = 8, 70
    paged = Paged(spec_of(group=3), straight([length], page_size), [count], page_size=page_size)
    blocks = [page.block for page in paged.tables[0]]
    for layer in range(2):
        for place, guessed in enumerate(paged.attended(layer)):
            one = Paged(paged.spec, paged.tables, [count], page_size=page_size)
            one.tables = [table(blocks, length - count + place + 1, page_size)]
            one.counts, one.queries = [1], paged.queries[place : place + 1]
            one.batch = paged_batch(one)
            assert torch.equal(one.attended(layer)[0], guessed)


def test_a_context_of_one_split_has_the_bits_of_its_merge():
    """Few pages need no merge, and a graph merges all the same."""
    paged = Paged(spec_of(), straight([20, 9]), [1, 1])
    fixed = fixed_step(paged, tokens=2, longest=30)
    assert fixed.fill(paged.batch)
    assert fixed.step.works[0].split_pages
    for layer in range(2):
        assert torch.equal(paged.attended(layer, fixed), paged.attended(layer))


def fixed_step(paged, *, tokens, longest, pages=40):
    return paged.backend().fixed_step(
        paged.store, tokens=tokens, pages=pages, longest=longest, max_position=500
    )


@pytest.mark.parametrize("page_size", [16, 3])
def test_a_fixed_step_serves_one_batch_after_another(page_size):
    tables = straight([20, 33, 70, 40], page_size)
    paged = Paged(spec_of(), tables, [1, 1, 1, 3], page_size=page_size)
    fixed = fixed_step(paged, tokens=8, longest=50, pages=90)
    where = [tensor.data_ptr() for tensor in fixed.tables]
    queries = torch.zeros((8, *paged.queries.shape[1:]), device=DEVICE)
    for members in ([0, 1, 2, 3], [2], [1, 3]):
        some = Paged(paged.spec, tables, paged.counts, page_size=page_size)
        some.tables = [tables[member] for member in members]
        some.counts = [paged.counts[member] for member in members]
        some.queries = paged.queries[: sum(some.counts)]
        some.batch = paged_batch(some)
        assert fixed.fill(some.batch)
        queries[: len(some.queries)] = some.queries
        for layer in range(2):
            out = fixed.attend(layer, queries)
            assert torch.equal(out[: len(some.queries)].cpu(), some.attended(layer))
            assert not out[len(some.queries) :].any()
    assert [tensor.data_ptr() for tensor in fixed.tables] == where
    assert all(tensor.dtype == torch.int32 for tensor in fixed.tables)


@pytest.mark.parametrize(
    ("lengths", "counts", "room"),
    [
        ([20, 20, 20], [1, 1, 1], {"tokens": 2, "longest": 30}),
        ([20, 20], [1, 2], {"tokens": 2, "longest": 30}),
        ([20], [9], {"tokens": 16, "longest": 30}),
        ([70], [1], {"tokens": 2, "longest": 4}),
        ([70], [1], {"tokens": 2, "longest": 30, "pages": 4}),
        ([40, 40, 40, 40], [2, 2, 2, 2], {"tokens": 8, "longest": 30, "pages": 12}),
    ],
    ids=["tokens", "guesses", "a prompt", "a long context", "pages", "parts"],
)
def test_a_fixed_step_refuses_what_it_has_no_room_for(lengths, counts, room):
    paged = Paged(spec_of(), straight(lengths), counts)
    fixed = fixed_step(paged, **room)
    before = [tensor.clone() for tensor in fixed.tables]
    assert not fixed.fill(paged.batch)
    assert all(map(torch.equal, fixed.tables, before))


def test_positions_beyond_the_angles_are_refused():
    paged = Paged(spec_of(), straight([600]), [1])
    assert not fixed_step(paged, tokens=1, longest=50, pages=50).fill(paged.batch)


class Recorder:
    """A kernel that keeps what the compiler would be asked for, once for each variant."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.variants = set()

    def __getitem__(self, grid):
        def launch(*args, **constants):
            self.variants.add(tuple(sorted(constants.items())))
            self.kernel[grid](*args, **constants)

        return launch


def test_no_step_needs_a_variant_that_was_not_compiled_at_the_start(monkeypatch):
    recorders = [Recorder(launch.attend_pages), Recorder(launch.merge_splits)]
    monkeypatch.setattr(launch, "attend_pages", recorders[0])
    monkeypatch.setattr(launch, "merge_splits", recorders[1])
    paged = Paged(spec_of(), straight([20, 70, 30]), [1, 2, 12])
    short = Paged(spec_of(), straight([20]), [1])
    for one in (paged, short):
        for layer in range(2):
            one.attended(layer)
    needed = [set(recorder.variants) for recorder in recorders]
    assert [len(variants) for variants in needed] == [6, 2]
    for recorder in recorders:
        recorder.variants.clear()
    paged.backend().warm_up(paged.store)
    assert [recorder.variants for recorder in recorders] == needed


@pytest.mark.parametrize("chunk", [5, 16, 40])
def test_any_chunking_agrees(chunk):
    length = 41
    whole = Paged(spec_of(), straight([length]), [length])
    blocks = [page.block for page in whole.tables[0]]
    for layer in range(2):
        expected = whole.attended(layer)
        for start in range(0, length, chunk):
            end = min(start + chunk, length)
            if end - start < chunk:
                continue
            part = Paged(whole.spec, whole.tables, [length])
            part.tables, part.counts = [table(blocks, end)], [end - start]
            part.queries = whole.queries[start:end]
            part.batch = paged_batch(part)
            torch.testing.assert_close(part.attended(layer), expected[start:end], atol=1e-6, rtol=0)


def test_a_window_leaves_out_what_lies_before_it():
    """A window layer walks the pages of its window only, wherever they lie in a split."""
    paged = Paged(spec_of(), straight([130]), [1])
    step = paged.backend().prepare(paged.batch, paged.store)
    tile = step.works[0].tiles[0].tolist()
    assert tile[5] == (130 - WINDOW) // 16
    assert torch.equal(paged.attended(1, step), paged.attended(1))
