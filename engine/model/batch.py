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
    sampled: Ints  # [S] in [N]: last new token of each sequence that draws a token


def build_batch(steps: Sequence[SequenceStep], store: KvStore) -> Batch:
    """Lay out a step.

    Raises:
        Corruption: a page table holds fewer slots than the step has tokens, names slots or blocks
            that don't exist, or disagrees with `first_position`.
    """
    table = _flat_table(steps)
    _check_table(table, store)
    blocks, firsts, lasts, bases = table.T
    lengths = lasts - firsts + 1
    ends = np.cumsum(lengths)
    of_entry = np.repeat(np.arange(len(table)), lengths)
    slots = np.arange(len(of_entry)) - (ends - lengths - firsts)[of_entry]
    context_bases = bases[of_entry]
    context_rows = store.rows(blocks[of_entry], slots)
    context_positions = context_bases + slots
    table_ends = np.cumsum([len(step.entries) for step in steps])
    context_starts = np.concatenate(([0], ends[table_ends - 1]))
    counts = np.array([len(step.token_ids) for step in steps], dtype=np.int64)
    query_starts = np.concatenate(([0], np.cumsum(counts)))
    if np.any(counts > np.diff(context_starts)):
        raise Corruption("a page table holds fewer valid slots than the step has new tokens")
    # where each new token stands in its context: the last `count` places
    places = np.arange(query_starts[-1]) + np.repeat(context_starts[1:] - query_starts[1:], counts)
    positions = context_positions[places]
    first_positions = np.array([step.first_position for step in steps], dtype=np.int64)
    expected = np.arange(query_starts[-1]) + np.repeat(first_positions - query_starts[:-1], counts)
    if not np.array_equal(positions, expected):
        raise Corruption("a page table places new tokens elsewhere than first_position says")
    return Batch(
        token_ids=np.fromiter(
            chain.from_iterable(step.token_ids for step in steps), np.int64, query_starts[-1]
        ),
        positions=positions,
        slots=slots[places],
        write_rows=context_rows[places],
        context_rows=context_rows,
        context_bases=context_bases,
        context_positions=context_positions,
        query_starts=query_starts,
        context_starts=context_starts,
        sampled=np.array(
            [end - 1 for step, end in zip(steps, query_starts[1:], strict=True) if step.sample],
            dtype=np.int64,
        ),
    )


def _flat_table(steps: Sequence[SequenceStep]) -> Ints:
    """Return the page-table entries of all sequences [entries, 4]."""
    if any(not step.token_ids or not step.entries for step in steps):
        raise Corruption("a sequence of a step has no new token or an empty page table")
    entries = chain.from_iterable(step.entries for step in steps)
    return np.fromiter(chain.from_iterable(entries), np.int64).reshape(-1, 4)


def _check_table(table: Ints, store: KvStore) -> None:
    blocks, firsts, lasts, _ = table.T
    wrong = (blocks < 0) | (blocks >= store.num_blocks)
    wrong |= (firsts < 0) | (firsts > lasts) | (lasts >= store.block_size)
    if wrong.any():
        raise Corruption(
            f"page-table entry {table[wrong][0].tolist()} (block, first, last, base): the store "
            f"has {store.num_blocks} blocks of {store.block_size} slots"
        )
