"""How ids split into pages where K lies rotated by its position: full ones, then a last. Pure.

Page i holds ids[block_size * i : block_size * (i + 1)] whatever was dropped before. An edit leaves
the pages before the first dropped id as they are; ids behind it move up into the places that came
free, and their KV with them (`engine.edits`). Keys of what has moved, and of what comes later, are
made under a lineage, and every key holds its page's position, since KV is no good at another one.
"""

from collections.abc import Sequence

from engine.memory.hashing import ChainHasher
from engine.partition import Page, Partition, Spans, kept_count, kept_spans


class DensePartition(Partition):
    """See Partition. Its pieces are not asked for: nothing is left where it was behind an edit."""

    def __init__(
        self,
        block_size: int,
        hasher: ChainHasher,
        fixed: Sequence[Page] = (),
        keys: Sequence[bytes] = (),
        sealed_len: int = 0,
    ) -> None:
        super().__init__(block_size, hasher, fixed, keys)
        self._before_edit = sealed_len

    @property
    def sealed_count(self) -> int:
        """Pages that hold ids from before the last edit; the last may hold later ones, too."""
        return -(-self._before_edit // self.block_size)

    @property
    def sealed_len(self) -> int:
        """Ids from before the last edit: their KV can't be computed from the ids there are."""
        return self._before_edit

    @property
    def closed_count(self) -> int:
        """No page is closed before it is full."""
        return 0

    def copy(self) -> "DensePartition":
        """One that may go on by itself."""
        return DensePartition(
            self.block_size, self._hasher, self._sealed, self._keys, self._before_edit
        )

    def edited(self, ids: Sequence[int], dropped: Spans) -> "DensePartition":
        """The partition once the `dropped` spans [start, stop) of all `ids` have left.

        Raises:
            BadSpansError: they do not rise, or lie outside.
        """
        list(kept_spans(len(ids), dropped))  # which says what is wrong with them
        fixed = self.complete_count(first_dropped(len(ids), dropped))
        keys = self.keys(ids, self.complete_count(len(ids)))
        return DensePartition(
            self.block_size,
            self._under(ids, dropped),
            [self.page(index) for index in range(fixed)],
            keys[:fixed],
            sealed_len=kept_count(len(ids), dropped),
        )

    def _base(self, start: int) -> int | None:
        return start


def first_dropped(length: int, dropped: Spans) -> int:
    """Place of the first of `length` ids that leaves; `length` when none does."""
    return dropped[0][0] if dropped else length
