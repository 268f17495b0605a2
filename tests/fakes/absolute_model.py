"""The fake model as one with a backend that wants K at its position, in pages without holes."""

from array import array
from collections.abc import Sequence

import numpy as np

from engine.ids import BlockId
from engine.kv.page_table import PageEntry, PageMove
from engine.kv.step import SequenceStep
from tests.fakes.fake_model import Draw, FakeModel


class AbsoluteFakeModel(FakeModel):
    """Keeps beside each slot's number the position that its K is rotated by."""

    def __init__(self, *, num_blocks: int, block_size: int, draw: Draw | None = None) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size, draw=draw)
        self.moves: list[PageMove] = []
        self._rotated = array("q", bytes(8 * num_blocks * block_size))
        self._rotated_bytes = np.frombuffer(self._rotated, dtype=np.uint8).reshape(num_blocks, -1)

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        for sequence in batch:
            self._check(sequence.entries, len(sequence.token_ids))
            for place, position in self._places(sequence.entries)[-len(sequence.token_ids) :]:
                self._rotated[place] = position
        return super().execute(batch)

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        super().copy_block(source, target)
        size = self.block_size
        self._rotated[target * size : (target + 1) * size] = self._rotated[
            source * size : (source + 1) * size
        ]

    def read_block(self, block: int, into: np.ndarray) -> None:
        size = 8 * self.block_size
        super().read_block(block, into[:size])
        into[size : 2 * size] = self._rotated_bytes[block]

    def write_block(self, block: int, data: np.ndarray) -> None:
        size = 8 * self.block_size
        super().write_block(block, data[:size])
        self._rotated_bytes[block] = data[size : 2 * size]

    def move_pages(self, moves: Sequence[PageMove]) -> None:
        size = self.block_size
        for move in moves:
            self.moves.append(move)
            places = [block * size + slot for block, slot in move.sources]
            states = [self.slots[place] for place in places]
            turned = [self._rotated[at] + by for at, by in zip(places, move.shifts, strict=True)]
            at = move.target * size
            self.slots[at : at + len(states)] = array("q", states)
            self._rotated[at : at + len(states)] = array("q", turned)

    def _check(self, entries: Sequence[PageEntry], new: int) -> None:
        for number, (_, first, last, base) in enumerate(entries):
            full = number == len(entries) - 1 or last == self.block_size - 1
            assert (first, base) == (0, number * self.block_size), f"page {number}: {entries}"
            assert full, f"page {number} is not full: {entries}"
        places = self._places(entries)
        for place, position in places[: len(places) - new]:
            assert self._rotated[place] == position, f"K of {position} is that of another position"

    def _places(self, entries: Sequence[PageEntry]) -> list[tuple[int, int]]:
        return [
            (block * self.block_size + slot, base + slot)
            for block, first, last, base in entries
            for slot in range(first, last + 1)
        ]
