"""Index of hashed prefixes: which block holds which. Loop thread only."""

from collections.abc import Iterator, Sequence

from engine.errors import Corruption
from engine.ids import BlockId


class BlockHashedTwice(Corruption):
    """A block can't get a second key: hashed blocks are immutable."""

    def __init__(self, block: BlockId) -> None:
        super().__init__(f"block {block} is hashed already")
        self.block = block


class PrefixCache:
    """Maps chain keys to blocks and back. The pool counts references."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, BlockId] = {}
        self._key_of: dict[BlockId, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def longest(self, keys: Sequence[bytes], start: int, stop: int) -> list[BlockId]:
        """Blocks of keys[start:stop], up to the first miss."""
        blocks: list[BlockId] = []
        for index in range(start, stop):
            block = self._block_of.get(keys[index])
            if block is None:
                break
            blocks.append(block)
        return blocks

    def block_of(self, key: bytes) -> BlockId | None:
        """The block that holds a key's prefix; None when there is none."""
        return self._block_of.get(key)

    def add(self, key: bytes, block: BlockId) -> bool:
        """Add a full block; False when another block has that key already.

        Raises:
            BlockHashedTwice: the block is here under another key.
        """
        if key in self._block_of:
            return False
        if block in self._key_of:
            raise BlockHashedTwice(block)
        self._block_of[key] = block
        self._key_of[block] = key
        return True

    def forget(self, block: BlockId) -> None:
        """Remove a block that is about to be overwritten."""
        del self._block_of[self._key_of.pop(block)]

    def key_of(self, block: BlockId) -> bytes | None:
        """The key that a block is hashed under."""
        return self._key_of.get(block)

    def items(self) -> Iterator[tuple[bytes, BlockId]]:
        """All keys and their blocks. For audits."""
        return iter(self._block_of.items())
