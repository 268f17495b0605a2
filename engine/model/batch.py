"""One step's sequences as index arrays, built once per step for all layers. Loop thread only."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from engine.errors import Corruption
from engine.kv.step import SequenceStep
from engine.kv.tensors import KvStore

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """Row in the KV store and position of each context token, C in all."""

    rows: Ints  # [C] rows of the KV store
    bases: Ints  # [C] base position of the token's block
    positions: Ints  # [C]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """New tokens and page tables of all sequences, concatenated.

    N new tokens; E page-table entries; C context tokens (each sequence's valid slots in table
    order, its new tokens last); B sequences.
    """

    token_ids: Ints  # [N]
    positions: Ints  # [N]
    slots: Ints  # [N] slot in its block
    write_rows: Ints  # [N] rows of the KV store
    pages: Ints  # [E, 4] block, first and last valid slot, base position
    page_starts: Ints  # [B + 1] where each sequence's entries start in [E]
    query_starts: Ints  # [B + 1] where each sequence's new tokens start in [N]
    context_starts: Ints  # [B + 1] where each sequence's context starts in [C]
    sampled: Ints  # [S] in [N]: new tokens whose logits are sampled from

    def contexts(self, store: KvStore) -> Contexts:
        """Lay out every context token, for a backend that reads row by row."""
        entries, slots = _locate(self.pages, np.arange(self.context_starts[-1]))
        blocks, bases = self.pages[entries, 0], self.pages[entries, 3]
        return Contexts(rows=store.rows(blocks, slots), bases=bases, positions=bases + slots)


def build_batch(steps: Sequence[SequenceStep], store: KvStore) -> Batch:
    """Lay out a step.

    Raises:
        Corruption: a page table has fewer slots than the step has tokens, refers to slots or blocks
            that don't exist, or contradicts `first_position`.
    """
    pages = _flat_table(steps, store)
    page_starts = _starts([len(step.entries) for step in steps])
    context_starts = np.concatenate(([0], np.cumsum(_lengths(pages))))[page_starts]
    counts = np.array([len(step.token_ids) for step in steps], dtype=np.int64)
    starts = _starts(counts)
    if np.any(counts > np.diff(context_starts)):
        raise Corruption("a page table has fewer valid slots than the step has new tokens")
    # place of each new token in [C]: they are the last of their context
    places = np.arange(starts[-1]) + np.repeat(context_starts[1:] - starts[1:], counts)
    entries, slots = _locate(pages, places)
    first_positions = np.array([step.first_position for step in steps], dtype=np.int64)
    expected = np.arange(starts[-1]) + np.repeat(first_positions - starts[:-1], counts)
    if not np.array_equal(pages[entries, 3] + slots, expected):
        raise Corruption("a page table places new tokens elsewhere than first_position says")
    token_ids = chain.from_iterable(step.token_ids for step in steps)
    sampled = [
        row
        for step, end in zip(steps, starts[1:].tolist(), strict=True)
        if step.sample is not None
        for row in range(end - 1 - step.sample.drafts, end)
    ]
    return Batch(
        token_ids=np.fromiter(token_ids, np.int64, starts[-1]),
        positions=expected,
        slots=slots,
        write_rows=store.rows(pages[entries, 0], slots),
        pages=pages,
        page_starts=page_starts,
        query_starts=starts,
        context_starts=context_starts,
        sampled=np.array(sampled, dtype=np.int64),
    )


def _lengths(pages: Ints) -> Ints:
    return pages[:, 2] - pages[:, 1] + 1


def _starts(counts: Sequence[int] | Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _locate(pages: Ints, places: Ints) -> tuple[Ints, Ints]:
    """Return the entry and the slot of context tokens, given by their places in [C]."""
    lengths = _lengths(pages)
    ends = np.cumsum(lengths)
    entries = np.searchsorted(ends, places, side="right")
    return entries, places - (ends - lengths - pages[:, 1])[entries]


def _flat_table(steps: Sequence[SequenceStep], store: KvStore) -> Ints:
    """Return the page-table entries of all sequences [entries, 4], after validation."""
    if any(not step.token_ids or not step.entries for step in steps):
        raise Corruption("a sequence of a step has no new token or an empty page table")
    entries = chain.from_iterable(step.entries for step in steps)
    table = np.fromiter(chain.from_iterable(entries), np.int64).reshape(-1, 4)
    blocks, firsts, lasts, bases = table.T
    wrong = (blocks < 0) | (blocks >= store.num_blocks)
    wrong |= (firsts < 0) | (firsts > lasts) | (lasts >= store.block_size)
    wrong |= bases + firsts < 0
    if wrong.any():
        raise Corruption(
            f"page-table entry {table[wrong][0].tolist()} (block, first, last, base): the store "
            f"has {store.num_blocks} blocks of {store.block_size} slots"
        )
    return table
