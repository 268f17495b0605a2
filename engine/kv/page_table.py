"""A context's page table: which block slots hold the KV of which positions. Loop thread only.

`PageMove` describes KV that moves to other slots under new positions, for backends with absolute
K. The deferred free list keeps discarded objects until there is time to free them.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.errors import Corruption
from engine.ids import BlockArray, BlockId

_MOST = 64  # objects; a longer list empties itself


class PageEntry(NamedTuple):
    """One block of a session.

    Slots `first`..`last` (both included) are valid; slot s holds the token at position
    `base` + s. K in slot s is stored rotated by s only, so a block can serve at any base.
    """

    block: BlockId
    first: int
    last: int
    base: int


def _position(entry: PageEntry) -> int:
    """Position of its first valid slot."""
    return entry.base + entry.first


class WrongSpace(Corruption):
    """The table has fewer slots than tokens to add or to keep."""

    def __init__(self, asked: int, there: int) -> None:
        super().__init__(f"{asked} slots were requested; the page table has {there}")
        self.asked = asked
        self.there = there


class DeferredFreeList:
    """Owns the `objects` added since it was last emptied."""

    def __init__(self) -> None:
        self.objects: list[object] = []

    def add(self, old: object) -> None:
        """Keep an unused object alive until the list is emptied."""
        if len(self.objects) >= _MOST:
            self.empty()
        self.objects.append(old)

    def empty(self) -> None:
        """Free all of them."""
        self.objects.clear()


@dataclass(slots=True)
class PageTableStats:
    """Totals over all page tables, kept up to date by them. Loop thread only.

    `tokens`: valid slots; a slot that two tables have counts twice. `blocks`: references to blocks.
    `holding`: tables that refer to a block. `deferred_frees`: removed entries.
    """

    tokens: int = 0
    blocks: int = 0
    holding: int = 0
    deferred_frees: DeferredFreeList = field(default_factory=DeferredFreeList)

    def free_later(self, old: object) -> None:
        """Keep an unused object alive until there is time to free it."""
        self.deferred_frees.add(old)


class PageTable:
    """Entries in the order of their positions, then reserved blocks without any valid slot.

    Takes and frees no blocks itself: its caller passes the returned blocks to the pool. `kept_len`
    counts valid slots. New tokens get `next_pos`, never `kept_len`: a slot index is not a position
    once something was dropped before it. Entries from before an edit are sealed: they never grow,
    and a block may occur in several of them (a reference each). A table must be empty when it is
    discarded, since it is counted in `table_stats`.
    """

    def __init__(self, block_size: int, table_stats: PageTableStats | None = None) -> None:
        self.block_size = block_size
        self.table_stats = PageTableStats() if table_stats is None else table_stats
        self.kept_len = 0
        self.next_pos = 0
        self._entries: list[PageEntry] = []
        self._blocks = array("i")  # those of the entries, to be freed without examining each
        self._reserved = array("i")
        self._sealed = 0  # this many of the first entries
        self._counted_tokens = 0
        self._counted_blocks = 0

    @property
    def sealed_count(self) -> int:
        """Number of entries that never grow."""
        return self._sealed

    @property
    def entries(self) -> Sequence[PageEntry]:
        """Entries with valid slots, as they are now."""
        return tuple(self._entries)

    def block(self, index: int) -> BlockId:
        """The block of entry number `index`."""
        return self._entries[index].block

    @property
    def reserved_count(self) -> int:
        """Number of blocks for later tokens."""
        return len(self._reserved)

    @property
    def blocks(self) -> list[BlockId]:
        """All blocks of the table in its order, reserved ones last."""
        return [BlockId(block) for block in self._blocks + self._reserved]

    @property
    def block_count(self) -> int:
        """Number of blocks that the table refers to."""
        return len(self._entries) + len(self._reserved)

    @property
    def open_tail(self) -> BlockId | None:
        """The block whose slots after its last valid one would be written next; None at a border.

        The pool knows whether it may be written (if hashed or shared, copy it first).
        """
        return self._entries[-1].block if self._tail_room else None

    def ends_open(self, count: int) -> bool:
        """Whether the last `count` valid slots lie in a tail with room: they filled no block."""
        if not self._tail_room:
            return False
        _, first, last, _ = self._entries[-1]
        return last - first >= count - 1

    @property
    def _tail_room(self) -> int:
        if len(self._entries) == self._sealed:  # none, or a sealed one
            return 0
        return self.block_size - 1 - self._entries[-1].last

    @property
    def room(self) -> int:
        """Tokens that can be appended without another block."""
        return self._tail_room + len(self._reserved) * self.block_size

    def blocks_needed(self, count: int) -> int:
        """How many more blocks `append(count)` needs."""
        return max(0, -(-(count - self.room) // self.block_size))

    def reserve(self, blocks: Sequence[BlockId]) -> None:
        """Add blocks for later tokens."""
        self._reserved.extend(blocks)
        self._count()

    def append(self, count: int) -> None:
        """Make the next `count` slots valid: the step about to run writes them.

        Raises:
            WrongSpace: fewer slots are reserved. The table is left unchanged.
        """
        tail_room = self._tail_room
        if count > tail_room + len(self._reserved) * self.block_size:
            raise WrongSpace(count, self.room)
        self.kept_len += count
        if added := min(count, tail_room):
            block, first, last, base = self._entries[-1]
            self._entries[-1] = PageEntry(block, first, last + added, base)
            self.next_pos += added
            count -= added
        while count:
            count -= self._open_block(count)
        self._count()

    def attach(self, blocks: Sequence[BlockId], pages: Sequence[tuple[int, int, int]]) -> None:
        """Append blocks that already hold KV (a prefix hit). Needs a border.

        `pages`: for each block the first and the last index of its slots' ids, half open, and the
        first slot (see `engine.kv.partition.Page`).

        Raises:
            WrongSpace: the last block has room left, or blocks are reserved.
        """
        if self.room:
            raise WrongSpace(0, self.room)
        for block, (start, stop, first) in zip(blocks, pages, strict=True):
            last = first + stop - start - 1
            self._add(PageEntry(block, first, last, self.next_pos - first))
            self.next_pos += stop - start
            self.kept_len += stop - start
        self._count()

    def seal(self, count: int) -> None:
        """Seal the first `count` entries; treat those after them like any other."""
        self._sealed = count

    def rearrange(
        self, pieces: Sequence[tuple[int, tuple[int, int, int]]]
    ) -> tuple[list[BlockId], list[BlockId]]:
        """Keep parts of the entries, at new positions; no KV moves. Seals them.

        `pieces`: for each part the number of its entry, and its ids and slot as in `attach`.

        Returns:
            Blocks that gain a reference, and those that lose one (reserved ones included), in the
            table's order.
        """
        old, self._entries, self._blocks = self._entries, [], array("i")
        again: list[BlockId] = []
        used: set[int] = set()
        for source, (start, stop, first) in pieces:
            block = old[source].block
            if source in used:
                again.append(block)
            used.add(source)
            self._add(PageEntry(block, first, first + stop - start - 1, start - first))
        gone = [entry.block for index, entry in enumerate(old) if index not in used]
        self.kept_len = self.next_pos = pieces[-1][1][1] if pieces else 0
        self.seal(len(self._entries))
        return again, [*gone, *map(BlockId, self.release_reserved())]

    def compact(self, first: int, blocks: Sequence[BlockId], kept_len: int) -> list[BlockId]:
        """Replace the pages from number `first` on by `blocks`: all full but the last.

        They already hold KV, in `kept_len` slots together with the pages before.

        Returns:
            Blocks that are no longer referenced, reserved ones included, in the table's order.
        """
        size = self.block_size
        dropped = [BlockId(block) for block in self._drop_after(first) if block not in blocks]
        for number, block in enumerate(blocks, first):
            base = number * size
            self._add(PageEntry(block, 0, min(size, kept_len - base) - 1, base))
        self.kept_len = self.next_pos = kept_len
        return [*dropped, *map(BlockId, self.release_reserved())]

    def release_reserved(self) -> BlockArray:
        """Remove and return the blocks for later tokens."""
        reserved, self._reserved = self._reserved, array("i")
        self._count()
        return reserved

    def truncate(self, kept_len: int) -> BlockArray:
        """Keep the first `kept_len` valid slots. O(removed blocks), without examining each of them.

        Returns:
            Blocks that are no longer referenced, reserved ones included, in the table's order.

        Raises:
            WrongSpace: the table has fewer slots.
        """
        if not 0 <= kept_len <= self.kept_len:
            raise WrongSpace(kept_len, self.kept_len)
        end = self.next_pos - (self.kept_len - kept_len)  # valid slots lie at consecutive positions
        count = bisect_left(self._entries, end, key=_position) if kept_len else 0
        dropped = self._drop_after(count)
        if count:
            block, first, last, base = self._entries[-1]
            if base + last >= end:
                self._entries[-1] = PageEntry(block, first, end - 1 - base, base)
        self.kept_len, self.next_pos = kept_len, end if count else 0
        self._sealed = min(self._sealed, count)
        return dropped + self.release_reserved()

    def replace_open_tail(self, block: BlockId) -> BlockId:
        """Replace the tail's block by a private copy; return the replaced block."""
        old = self._entries[-1]
        self._entries[-1] = PageEntry(block, old.first, old.last, old.base)
        self._blocks[-1] = block
        return old.block

    def fork(self, kept_len: int) -> "PageTable":
        """Return a table of the first `kept_len` valid slots, on the same blocks.

        Both tables may end inside one block: the first to write there copies it.
        """
        child = PageTable(self.block_size, self.table_stats)
        child._entries = list(self._entries)
        child._blocks = self._blocks[:]
        child._sealed = self._sealed
        child.kept_len, child.next_pos = self.kept_len, self.next_pos
        child.truncate(kept_len)
        return child

    def _add(self, entry: PageEntry) -> None:
        self._entries.append(entry)
        self._blocks.append(entry.block)

    def _drop_after(self, count: int) -> BlockArray:
        """Keep the first `count` entries; return the blocks of the others."""
        if count == len(self._entries):
            return array("i")
        gone, self._entries = self._entries, self._entries[:count]
        dropped, self._blocks = self._blocks[count:], self._blocks[:count]
        self.table_stats.free_later(gone)
        return dropped

    def _count(self) -> None:
        table_stats, blocks = self.table_stats, len(self._entries) + len(self._reserved)
        table_stats.tokens += self.kept_len - self._counted_tokens
        table_stats.blocks += blocks - self._counted_blocks
        table_stats.holding += (blocks > 0) - (self._counted_blocks > 0)
        self._counted_tokens, self._counted_blocks = self.kept_len, blocks

    def _open_block(self, count: int) -> int:
        added = min(count, self.block_size)
        self._add(PageEntry(BlockId(self._reserved.pop(0)), 0, added - 1, self.next_pos))
        self.next_pos += added
        return added


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMove:
    """New contents of a block's first slots, where K is rotated by its position.

    `sources`: current block and slot of each token's KV. `shifts`: positions by which each K is
    rotated; at most 0, since tokens only move to lower positions.
    """

    target: BlockId
    sources: Sequence[tuple[BlockId, int]]
    shifts: Sequence[int]


MovePages = Callable[[Sequence[PageMove]], None]
"""Performs moves in order: no move reads a source after its target, or a later one's, was written.
Sources of a later move may be read earlier."""
