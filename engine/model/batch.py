"""One step's sequences as index arrays, made once per step for all layers. Loop thread only."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from engine.errors import Corruption
from engine.memory.kv_store import KvStore
from engine.step import SequenceStep

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The new tokens of all sequences in a row, and the contexts that they attend to in a row.

    N new tokens; C context tokens (each sequence's valid slots in table order, its new tokens
    last); B sequences.
    """

    token_ids: Ints  # [N]
    positions: Ints  # [N]
    slots: Ints  # [N] slot inside its block
    write_rows: Ints  # [N] rows of the KV store
    context_rows: Ints  # [C] rows of the KV store
    context_bases: Ints  # [C] base position of the token's block
    context_positions: Ints  # [C]
    query_starts: Ints  # [B + 1] where each sequence's new tokens start in [N]
    context_starts: Ints  # [B + 1] where each sequence's context starts in [C]
    sampled: Ints  # [S] in [N]: new tokens whose logits a token is drawn from


def build_batch(steps: Sequence[SequenceStep], store: KvStore) -> Batch:
    """Lay out a step.

    Raises:
        Corruption: a page table holds fewer slots than the step has tokens, names slots or blocks
            that don't exist, or disagrees with `first_position`.
    """
    contexts = _lay_out_contexts(_flat_table(steps, store), steps, store)
    counts = np.array([len(step.token_ids) for step in steps], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(counts)))
    if np.any(counts > np.diff(contexts.starts)):
        raise Corruption("a page table holds fewer valid slots than the step has new tokens")
    # where each new token stands in its context: the last `count` places
    places = np.arange(starts[-1]) + np.repeat(contexts.starts[1:] - starts[1:], counts)
    first_positions = np.array([step.first_position for step in steps], dtype=np.int64)
    expected = np.arange(starts[-1]) + np.repeat(first_positions - starts[:-1], counts)
    if not np.array_equal(contexts.positions[places], expected):
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
        slots=contexts.slots[places],
        write_rows=contexts.rows[places],
        context_rows=contexts.rows,
        context_bases=contexts.bases,
        context_positions=contexts.positions,
        query_starts=starts,
        context_starts=contexts.starts,
        sampled=np.array(sampled, dtype=np.int64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contexts:
    """Every valid slot of every table, in order."""

    rows: Ints
    slots: Ints
    bases: Ints
    positions: Ints
    starts: Ints


def _lay_out_contexts(table: Ints, steps: Sequence[SequenceStep], store: KvStore) -> _Contexts:
    blocks, firsts, lasts, bases = table.T
    lengths = lasts - firsts + 1
    ends = np.cumsum(lengths)
    of_entry = np.repeat(np.arange(len(table)), lengths)
    slots = np.arange(len(of_entry)) - (ends - lengths - firsts)[of_entry]
    table_ends = np.cumsum([len(step.entries) for step in steps])
    return _Contexts(
        rows=store.rows(blocks[of_entry], slots),
        slots=slots,
        bases=bases[of_entry],
        positions=bases[of_entry] + slots,
        starts=np.concatenate(([0], ends[table_ends - 1])),
    )


def _flat_table(steps: Sequence[SequenceStep], store: KvStore) -> Ints:
    """Return the page-table entries of all sequences [entries, 4], each one checked."""
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
