"""One step's sequences as the C library reads them, in reused buffers. Loop thread only.

In decode a page table differs from the previous step in its last entry only, so each place in the
batch remembers the entries that it wrote, and writes only new ones.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import Corruption
from engine.kv.page_table import PageEntry
from engine.kv.step import SequenceStep
from engine.model.kernels.library import Step, address_of, aligned_zeros

Ints = npt.NDArray[np.int32]

_ROOM = 64  # spare entries per table (1,024 tokens): a table that outgrows them moves
_REFUSALS = {
    -2: "a sequence of a step has no new token or an empty page table",
    -3: "a token id is outside the vocabulary",
    -4: "a page-table entry names a block or slots that the pool lacks, or is out of order",
    -5: "a page table holds fewer valid slots than the step has new tokens",
    -6: "a page table places new tokens elsewhere than first_position says",
    -7: "an output row does not exist",
}


class StepBuffers:
    """Owns the arrays that a `Step` points at. `end_position`: the highest of a step, plus one."""

    def __init__(self, vocab_size: int) -> None:
        self.step = Step(logits_stride=-(-vocab_size // 16) * 16)
        self.end_position = 0
        self._rows = 0
        self._sequences = 0
        self._outputs = 0
        self._tokens = self._ints("tokens", 0)
        self._row_starts = self._ints("row_starts", 1)
        self._first_positions = self._ints("first_positions", 0)
        self._entry_starts = self._ints("entry_starts", 0)
        self._entry_counts = self._ints("entry_counts", 0)
        self._output_rows = self._ints("output_rows", 0)
        self._entries = self._ints("entries", 0, 4)
        self._written: list[Sequence[PageEntry]] = []  # by place in the batch
        self._rooms: list[int] = []  # entries that each place has room for
        self.logits = self._array("logits", np.float32, (0, 0))
        self.choices = self._ints("choices", 0)

    def fill(self, batch: Sequence[SequenceStep], *, every_token: bool) -> None:
        """Lay out a step. The library validates it."""
        tokens: list[int] = []
        rows: list[int] = []
        ends, first_positions = [], []
        self.end_position = 0
        for one in batch:
            start = len(tokens)
            tokens += one.token_ids
            ends.append(len(tokens))
            first_positions.append(one.first_position)
            self.end_position = max(self.end_position, one.first_position + len(tokens) - start)
            if every_token:
                rows += range(start, len(tokens))
            elif one.sample is not None:
                rows += range(len(tokens) - 1 - one.sample.drafts, len(tokens))
        self._grow(rows=len(tokens), sequences=len(batch), outputs=len(rows))
        step = self.step
        step.rows, step.sequences, step.outputs = len(tokens), len(batch), len(rows)
        self._tokens[: len(tokens)] = tokens
        self._row_starts[1 : len(batch) + 1] = ends
        self._first_positions[: len(batch)] = first_positions
        self._output_rows[: len(rows)] = rows
        self._write_entries(batch)

    def _write_entries(self, batch: Sequence[SequenceStep]) -> None:
        moved = False
        for place, one in enumerate(batch):
            if len(one.entries) > self._rooms[place]:
                self._rooms[place] = len(one.entries) + _ROOM
                moved = True
        if moved:
            self._move_entries()
        starts = self._entry_starts
        for place, one in enumerate(batch):
            table = one.entries
            before = self._written[place]
            kept = max(0, min(len(before), len(table)) - 1)
            if before[:kept] != table[:kept]:
                kept = 0
            start = int(starts[place])
            if table:
                self._entries[start + kept : start + len(table)] = table[kept:]
            self._written[place] = table
            self._entry_counts[place] = len(table)

    def _move_entries(self) -> None:
        ends = np.cumsum(self._rooms)
        self._entry_starts[: len(ends)] = ends - self._rooms
        if ends[-1] > len(self._entries):
            self._entries = self._ints("entries", int(ends[-1]) * 2, 4)
        self._written = [()] * len(self._written)

    def _grow(self, *, rows: int, sequences: int, outputs: int) -> None:
        if rows > self._rows:
            self._rows = rows
            self._tokens = self._ints("tokens", rows)
        if sequences > self._sequences:
            self._grow_sequences(sequences)
        if outputs > self._outputs:
            self._outputs = outputs
            self._output_rows = self._ints("output_rows", outputs)
            self.choices = self._ints("choices", outputs)
            self.logits = self._array("logits", np.float32, (outputs, self.step.logits_stride))

    def _grow_sequences(self, sequences: int) -> None:
        self._written += [()] * (sequences - self._sequences)
        self._rooms += [0] * (sequences - self._sequences)
        self._sequences = sequences
        self._row_starts = self._ints("row_starts", sequences + 1)
        self._first_positions = self._ints("first_positions", sequences)
        self._entry_starts = self._ints("entry_starts", sequences)
        self._entry_counts = self._ints("entry_counts", sequences)
        self._move_entries()

    def _ints(self, name: str, *shape: int) -> Ints:
        return self._array(name, np.int32, shape)

    def _array(self, name: str, kind: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        array = aligned_zeros(kind, *shape)
        setattr(self.step, name, address_of(array))
        return array


def raise_refusal(outcome: int) -> None:
    """Raise the error of a rejected step.

    Raises:
        MemoryError: there is not enough memory for the step's buffers.
        Corruption: the step contradicts itself.
    """
    if outcome in _REFUSALS:
        raise Corruption(_REFUSALS[outcome])
    if outcome:
        raise MemoryError
