"""How a session's ids split into pages, one per block, and what each is keyed by. Pure.

Without edits page i holds ids[block_size * i : block_size * (i + 1)]: a function of the ids alone,
so that a rebuilt session and a resent history split and hash alike. A `shifted` edit drops spans of
ids and keeps the KV of the others: what is left of the pages there were is *sealed*, each with the
slots and the key of the block it lies in, and ids that come later start a new page. They attended
to what was dropped before, or to what had; so their keys are made under a lineage, a hash of all
that was visible and of what was dropped, and are never found by a session without these edits.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.memory.hashing import ROOT, ChainHasher

Spans = Sequence[tuple[int, int]]


class Page(NamedTuple):
    """ids[start:stop], whose KV lies in one block from slot `first` on."""

    start: int
    stop: int
    first: int


class Piece(NamedTuple):
    """What an edit leaves of page number `source`."""

    source: int
    page: Page


class BadSpansError(Exception):
    """Spans of an edit that do not rise, touch, or lie outside of the ids."""

    def __init__(self, spans: Spans, length: int) -> None:
        super().__init__(f"spans {list(spans)} of {length} ids")


class Partition:
    """The pages of one sequence of ids, which it does not hold: whoever asks passes them."""

    def __init__(self, block_size: int, hasher: ChainHasher) -> None:
        self.block_size = block_size
        self._hasher = hasher
        self._sealed: list[Page] = []
        self._keys: list[bytes] = []  # of the sealed pages, then of as many others as were asked

    @property
    def is_edited(self) -> bool:
        """Whether an edit was made."""
        return bool(self._hasher.lineage)

    @property
    def sealed_count(self) -> int:
        """Pages from before the last edit."""
        return len(self._sealed)

    @property
    def sealed_len(self) -> int:
        """Ids in sealed pages."""
        return self._sealed[-1].stop if self._sealed else 0

    def complete_count(self, length: int) -> int:
        """How many of the first pages are complete with the first `length` ids."""
        beyond = length - self.sealed_len
        if beyond >= 0:
            return self.sealed_count + beyond // self.block_size
        return sum(page.stop <= length for page in self._sealed)

    def page(self, index: int) -> Page:
        """Page number `index`, as it is when complete."""
        if index < self.sealed_count:
            return self._sealed[index]
        start = self.sealed_len + (index - self.sealed_count) * self.block_size
        return Page(start, start + self.block_size, 0)

    def end(self, count: int) -> int:
        """How many ids the first `count` pages hold."""
        return self.page(count - 1).stop if count else 0

    def keys(self, ids: Sequence[int], count: int) -> list[bytes]:
        """Keys of (at least) the first `count` pages, all of them complete."""
        self._extend(self._keys, ids, count)
        return self._keys

    def fresh_keys(self, ids: Sequence[int], count: int) -> list[bytes]:
        """The same keys, those of pages that are not sealed computed anew. For audits."""
        keys = self._keys[: self.sealed_count]
        self._extend(keys, ids, count)
        return keys

    def forget_after(self, length: int) -> list[bytes]:
        """Ids from `length` on, none of them sealed, are not what they were.

        Returns:
            The keys that there were, as the list that `keys` has handed out: nobody changes it.
        """
        before, self._keys = self._keys, self._keys[: self.complete_count(length)]
        return before

    def copy(self) -> "Partition":
        """One that may go on by itself."""
        twin = Partition(self.block_size, self._hasher)
        twin._sealed, twin._keys = self._sealed, self._keys.copy()
        return twin

    def edited(self, ids: Sequence[int], dropped: Spans) -> tuple["Partition", list[Piece]]:
        """The partition once the `dropped` spans [start, stop) of all `ids` have left.

        Raises:
            BadSpansError: they do not rise, or lie outside.
        """
        pieces = self._pieces(len(ids), dropped)
        keys = self.keys(ids, self.complete_count(len(ids))).copy()
        self._seal(keys, ids)
        after = Partition(self.block_size, self._hasher.under(self._lineage(ids, dropped)))
        after._sealed = [piece.page for piece in pieces]
        after._keys = [keys[piece.source] for piece in pieces]
        return after, pieces

    def _pieces(self, length: int, dropped: Spans) -> list[Piece]:
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
            keys.append(self._hasher.key(self._parent(keys), ids[start:stop]))

    def _parent(self, keys: Sequence[bytes]) -> bytes:
        return keys[-1] if len(keys) > self.sealed_count else ROOT

    def _lineage(self, ids: Sequence[int], dropped: Spans) -> bytes:
        digest = hashlib.sha256(self._hasher.lineage)
        digest.update(struct.pack(f"<Q{len(ids)}I", len(ids), *ids))
        digest.update(
            struct.pack(f"<{2 * len(dropped)}Q", *(edge for span in dropped for edge in span))
        )
        return digest.digest()


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
    """How many of the first `length` ids an edit keeps. Spans may reach beyond them."""
    return length - sum(
        max(0, min(stop, length) - start) for start, stop in dropped if start < length
    )
