"""Splits ids into full pages and a last one, where K is rotated by its position. Pure.

Page i holds ids[block_size * i : block_size * (i + 1)], whatever was dropped before. An edit leaves
the pages before the first dropped id unchanged; later ids move up into the freed places, and their
KV with them (`engine.edits`). Keys of moved and later pages are made under a lineage, and every key
includes its page's position, since the KV is valid at that position only.
"""

from collections.abc import Sequence

from engine.memory.hashing import ChainHasher
from engine.partition import Page, Partition, Spans, kept_count, kept_spans


class DensePartition(Partition):
    """See Partition. `pieces` is not used: an edit leaves nothing in place behind it."""

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
        """Pages with ids from before the last edit; the last may hold later ids, too."""
        return -(-self._before_edit // self.block_size)

    @property
    def sealed_len(self) -> int:
        """Ids from before the last edit: their KV can't be computed from the current ids."""
        return self._before_edit

    @property
    def closed_count(self) -> int:
        """A page is never closed before it is full."""
        return 0

    def copy(self) -> "DensePartition":
        """Return an independent copy."""
        return DensePartition(
            self.block_size, self._hasher, self._sealed, self._keys, self._before_edit
        )

    def edited(self, ids: Sequence[int], dropped: Spans) -> "DensePartition":
        """Return the partition after the `dropped` spans [start, stop) of all `ids` were removed.

        Raises:
            BadSpansError: the spans do not rise, or lie outside.
        """
        list(kept_spans(len(ids), dropped))  # raises on bad spans
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
    """Index of the first of `length` ids that is dropped; `length` when none is."""
    return dropped[0][0] if dropped else length
