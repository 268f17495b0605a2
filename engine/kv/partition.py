"""How a context's token ids split into pages, one per block, and the key of each page. Pure.

The dense partition is that of backends whose K is rotated by its position.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.kv.hashing import ROOT, ChainHasher

Spans = Sequence[tuple[int, int]]


class Page(NamedTuple):
    """ids[start:stop], whose KV lies in one block from slot `first` on."""

    start: int
    stop: int
    first: int


class Piece(NamedTuple):
    """Part of page number `source` that an edit keeps."""

    source: int
    page: Page


class BadSpansError(Exception):
    """Spans of an edit that do not rise, that touch, or that lie outside of the ids."""

    def __init__(self, spans: Spans, length: int) -> None:
        super().__init__(f"spans {list(spans)} of {length} ids")


class Partition:
    """Pages of one sequence of ids. The ids are passed to each method, not stored.

    For KV that holds no position; `DensePartition` is for KV that does.
    """

    def __init__(
        self,
        block_size: int,
        hasher: ChainHasher,
        sealed: Sequence[Page] = (),
        keys: Sequence[bytes] = (),
    ) -> None:
        self.block_size = block_size
        self._hasher = hasher
        self._sealed = sealed
        self._keys = list(keys)  # of the sealed pages, then of the pages computed so far

    @property
    def is_edited(self) -> bool:
        """Whether an edit was made."""
        return bool(self._hasher.lineage)

    @property
    def sealed_count(self) -> int:
        """Pages with ids from before the last edit."""
        return len(self._sealed)

    @property
    def sealed_len(self) -> int:
        """Ids from before the last edit: their KV can't be computed from the current ids."""
        return self._fixed_len

    @property
    def fixed_count(self) -> int:
        """Pages whose slots and keys are those from before the last edit."""
        return len(self._sealed)

    @property
    def closed_count(self) -> int:
        """Pages that never grow, full or not."""
        return len(self._sealed)

    @property
    def _fixed_len(self) -> int:
        return self._sealed[-1].stop if self._sealed else 0

    def complete_count(self, length: int) -> int:
        """Number of leading pages that are complete with the first `length` ids."""
        beyond = length - self._fixed_len
        if beyond >= 0:
            return len(self._sealed) + beyond // self.block_size
        return sum(page.stop <= length for page in self._sealed)

    def page_count(self, length: int) -> int:
        """Number of pages that the first `length` ids occupy. No sealed id may follow them."""
        beyond = max(0, length - self._fixed_len)
        return len(self._sealed) + -(-beyond // self.block_size)

    def page(self, index: int) -> Page:
        """Page number `index`, when complete."""
        if index < len(self._sealed):
            return self._sealed[index]
        start = self._fixed_len + (index - len(self._sealed)) * self.block_size
        return Page(start, start + self.block_size, 0)

    def end(self, count: int) -> int:
        """Number of ids in the first `count` pages."""
        return self.page(count - 1).stop if count else 0

    def keys(self, ids: Sequence[int], count: int) -> list[bytes]:
        """Keys of (at least) the first `count` pages, all of them complete."""
        self._extend(self._keys, ids, count)
        return self._keys

    def fresh_keys(self, ids: Sequence[int], count: int) -> list[bytes]:
        """The same keys, recomputed for pages that are not sealed. For audits."""
        keys = self._keys[: len(self._sealed)]
        self._extend(keys, ids, count)
        return keys

    def forget_after(self, length: int) -> list[bytes]:
        """Ids from `length` on, none of them sealed, have changed.

        Returns:
            The former keys, as the list that `keys` has returned: it is not modified any more.
        """
        before, self._keys = self._keys, self._keys[: self.complete_count(length)]
        return before

    def copy(self) -> "Partition":
        """Return an independent copy."""
        return Partition(self.block_size, self._hasher, self._sealed, self._keys)

    def edited(self, ids: Sequence[int], dropped: Spans) -> "Partition":
        """Return the partition after the `dropped` spans [start, stop) of all `ids` were removed.

        Raises:
            BadSpansError: the spans do not rise, or lie outside.
        """
        pieces = self.pieces(len(ids), dropped)
        keys = self.keys(ids, self.complete_count(len(ids))).copy()
        self._seal(keys, ids)
        return Partition(
            self.block_size,
            self._under(ids, dropped),
            [piece.page for piece in pieces],
            [keys[piece.source] for piece in pieces],
        )

    def pieces(self, length: int, dropped: Spans) -> list[Piece]:
        """Parts of the pages of `length` ids that remain after the `dropped` spans are removed.

        Raises:
            BadSpansError: the spans do not rise, or lie outside.
        """
        pieces: list[Piece] = []
        end = index = 0
        for span_start, span_stop in kept_spans(length, dropped):
            at = span_start
            while at < span_stop:
                page = self.page(index)
                if page.stop <= at:
                    index += 1
                    continue
                size = min(span_stop, page.stop) - at
                pieces.append(Piece(index, Page(end, end + size, page.first + at - page.start)))
                at, end = at + size, end + size
        return pieces

    def _seal(self, keys: list[bytes], ids: Sequence[int]) -> None:
        """Add the key of the last page if it is not complete: fewer ids, so a key of its own."""
        start = self.end(len(keys))
        if start < len(ids):
            keys.append(self._hasher.key(self._parent(keys), ids[start:]))

    def _extend(self, keys: list[bytes], ids: Sequence[int], count: int) -> None:
        for index in range(len(keys), count):
            start, stop, _ = self.page(index)
            base = self._base(start)
            keys.append(self._hasher.key(self._parent(keys), ids[start:stop], base))

    def _base(self, start: int) -> int | None:
        """Position of a page's first id, as part of its key: none here."""
        del start
        return None

    def _parent(self, keys: Sequence[bytes]) -> bytes:
        return keys[-1] if len(keys) > len(self._sealed) else ROOT

    def _under(self, ids: Sequence[int], dropped: Spans) -> ChainHasher:
        """Return the hasher for keys after an edit of all `ids`."""
        digest = hashlib.sha256(self._hasher.lineage)
        digest.update(struct.pack(f"<Q{len(ids)}I", len(ids), *ids))
        digest.update(
            struct.pack(f"<{2 * len(dropped)}Q", *(edge for span in dropped for edge in span))
        )
        return self._hasher.under(digest.digest())


def kept_spans(length: int, dropped: Spans) -> Iterator[tuple[int, int]]:
    """Yield the spans of `length` ids that an edit keeps, none of them empty.

    Raises:
        BadSpansError: the dropped ones do not rise, or lie outside.
    """
    at = 0
    for start, stop in dropped:
        if not at <= start < stop <= length:
            raise BadSpansError(dropped, length)
        if at < start:
            yield at, start
        at = stop
    if at < length:
        yield at, length


def kept_count(length: int, dropped: Spans) -> int:
    """Number of the first `length` ids that an edit keeps. Spans may reach beyond them."""
    return length - sum(
        max(0, min(stop, length) - start) for start, stop in dropped if start < length
    )


class DensePartition(Partition):
    """Partition for KV that holds positions.

    `pieces` is not used: an edit moves all KV behind the first dropped id.
    """

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


def blocks_for(tokens: int, block_size: int) -> int:
    """Return the number of blocks that hold `tokens` tokens."""
    return -(-tokens // block_size)


def worst_case_blocks(
    *,
    context_tokens: int,
    prompt_tokens: int,
    max_output_tokens: int,
    close_tokens: int,
    block_size: int,
) -> int:
    """Return the blocks of a context after a turn of the greatest possible length."""
    tokens = context_tokens + prompt_tokens + max_output_tokens + close_tokens
    return blocks_for(tokens, block_size)
