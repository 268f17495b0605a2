"""Free list of KV blocks and their reference counts. Loop thread only.

A block is in one of three states:
    free     not referenced, its contents are worthless
    cached   not referenced but hashed: it can be hit until it is taken again
    active   referenced
Free blocks are taken first, then the cached block that was freed longest ago.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence

from engine.errors import Corruption
from engine.ids import BlockId
from engine.kv.free_library import FreeMany, Library, load

_NONE = -1
_FEW = 16  # blocks: for fewer a call of the library takes longer than a loop
_LIBRARY = load()


class RefcountBelowZero(Corruption):
    """More references to a block were freed than were taken."""

    def __init__(self, block: BlockId) -> None:
        super().__init__(f"block {block} was freed without a reference to it")
        self.block = block


class UnknownBlock(Corruption):
    """A block id outside the pool."""

    def __init__(self, block: BlockId, total: int) -> None:
        super().__init__(f"block {block} is not in a pool of {total}")
        self.block = block
        self.total = total


class BlockNotAlive(Corruption):
    """A free block can't be shared or hashed: its contents are gone."""

    def __init__(self, block: BlockId) -> None:
        super().__init__(f"block {block} is free: it has nothing to share or to hash")
        self.block = block


class BlockPool:
    """Allocates `total` equal blocks in O(1) each, with 17 bytes of bookkeeping per block.

    `forget` is called with each cached block that is taken: its contents are about to be
    overwritten. `reference_count`: references to all blocks together.
    """

    def __init__(
        self,
        total: int,
        forget: Callable[[BlockId], None],
        *,
        library: Library | None = _LIBRARY,
    ) -> None:
        self.total = total
        self._forget = forget
        self._references = array("i", bytes(4 * total))
        self._hashed = bytearray(total)
        self._free = array("i", range(total - 1, -1, -1))  # a stack: block 0 goes first
        # Cached blocks: a list linked through two arrays, since a hit removes one from its middle.
        self._older = array("i", bytes(4 * total))
        self._newer = array("i", bytes(4 * total))
        self._oldest = _NONE
        self._newest = _NONE
        self._cached_count = 0
        self._native: FreeMany | None = None
        if library is not None:  # it points into these arrays, which are never replaced
            self._native = FreeMany(
                library,
                references=self._references,
                hashed=self._hashed,
                older=self._older,
                newer=self._newer,
            )
        self.reference_count = 0  # of all blocks

    @property
    def free_count(self) -> int:
        """Blocks without contents."""
        return len(self._free)

    @property
    def cached_count(self) -> int:
        """Blocks that are not referenced but can be hit."""
        return self._cached_count

    @property
    def available_count(self) -> int:
        """Blocks that `try_take` can allocate."""
        return len(self._free) + self._cached_count

    @property
    def active_count(self) -> int:
        """Blocks that are referenced."""
        return self.total - len(self._free) - self._cached_count

    def references(self, block: BlockId) -> int:
        """Number of page tables that refer to a block."""
        return self._references[block]

    def snapshot(self) -> tuple[bytes, bytes]:
        """Copies of the references (a C int per block) and of the marks (1: hashed)."""
        return self._references.tobytes(), bytes(self._hashed)

    def is_hashed(self, block: BlockId) -> bool:
        """Whether a block is in the prefix cache, and so immutable."""
        return bool(self._hashed[block])

    def is_writable(self, block: BlockId) -> bool:
        """Whether its only owner may write to it: neither hashed nor shared."""
        return not self._hashed[block] and self._references[block] == 1

    def try_take(self, count: int) -> list[BlockId] | None:
        """Take `count` blocks with one reference each; None when there are fewer."""
        if count > self.available_count:
            return None
        return [self._take_one() for _ in range(count)]

    def share(self, blocks: Sequence[BlockId]) -> None:
        """Add a reference to each block, reviving cached ones.

        Raises:
            BlockNotAlive: one of them is free. The pool is left unchanged.
        """
        for block in blocks:
            self._check(block)
            if not self._references[block] and not self._hashed[block]:
                raise BlockNotAlive(block)
        for block in blocks:
            if not self._references[block]:
                self._unlink(block)
            self._references[block] += 1
            self.reference_count += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Free one reference to each block; `blocks` is in the order of the page table.

        If it is an array, it is a `BlockArray`.

        Raises:
            RefcountBelowZero: one of them has no reference. The pool is left unchanged.
        """
        if len(blocks) >= _FEW and self._free_many(blocks):
            return
        one_by_one = [BlockId(block) for block in blocks]
        for block, times in Counter(one_by_one).items():
            self._check(block)
            if self._references[block] < times:
                raise RefcountBelowZero(block)
        # Tail first: it is taken first again, so prefixes, which are more likely shared, last
        # longest.
        for block in reversed(one_by_one):
            self._free_one(block)

    def mark_hashed(self, block: BlockId) -> None:
        """Record that a block is in the prefix cache.

        Raises:
            BlockNotAlive: it has no reference, so its contents may be anything.
        """
        self._check(block)
        if not self._references[block]:
            raise BlockNotAlive(block)
        self._hashed[block] = 1

    def unmark_hashed(self, block: BlockId) -> None:
        """Record that a block is no longer in the prefix cache.

        Raises:
            BlockNotAlive: it has no reference: it is cached by its hash alone.
        """
        self._check(block)
        if not self._references[block]:
            raise BlockNotAlive(block)
        self._hashed[block] = 0

    def discard(self, block: BlockId) -> None:
        """Make a cached block free: the prefix cache has dropped it.

        Raises:
            BlockNotAlive: it is not cached.
        """
        self._check(block)
        if self._references[block] or not self._hashed[block]:
            raise BlockNotAlive(block)
        self._unlink(block)
        self._hashed[block] = 0
        self._free.append(block)

    def free_blocks(self) -> list[BlockId]:
        """All free blocks. O(n): for audits."""
        return [BlockId(block) for block in self._free]

    def cached_blocks(self, most: int | None = None) -> list[BlockId]:
        """Cached blocks, the next to be taken first; `most` limits their number. O(n)."""
        blocks: list[BlockId] = []
        at = self._oldest
        most = self.total + 1 if most is None else most  # an audit notices a cyclic list
        while at != _NONE and len(blocks) < most:
            blocks.append(BlockId(at))
            at = self._newer[at]
        return blocks

    def _take_one(self) -> BlockId:
        if self._free:
            block = BlockId(self._free.pop())
        else:
            block = BlockId(self._oldest)
            self._unlink(block)
            self._hashed[block] = 0
            self._forget(block)
        self._references[block] = 1
        self.reference_count += 1
        return block

    def _free_one(self, block: BlockId) -> None:
        self._references[block] -= 1
        self.reference_count -= 1
        if self._references[block]:
            return
        if self._hashed[block]:
            self._link(block)
        else:
            self._free.append(block)

    def _free_many(self, blocks: Sequence[int]) -> bool:
        """Free many references; False, and nothing changed, if one can't be freed."""
        if self._native is None:
            return False
        result = self._native(blocks, self._oldest, self._newest, self._cached_count)
        if result is None:
            return False
        freed, self._oldest, self._newest, self._cached_count = result
        self._free.extend(freed)
        self.reference_count -= len(blocks)
        return True

    def _link(self, block: BlockId) -> None:
        self._older[block], self._newer[block] = self._newest, _NONE
        if self._newest == _NONE:
            self._oldest = block
        else:
            self._newer[self._newest] = block
        self._newest = block
        self._cached_count += 1

    def _unlink(self, block: BlockId) -> None:
        older, newer = self._older[block], self._newer[block]
        if older == _NONE:
            self._oldest = newer
        else:
            self._newer[older] = newer
        if newer == _NONE:
            self._newest = older
        else:
            self._older[newer] = older
        self._cached_count -= 1

    def _check(self, block: BlockId) -> None:
        if not 0 <= block < self.total:
            raise UnknownBlock(block, self.total)
