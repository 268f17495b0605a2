"""The host tier: slots in main memory, pinned where the device copies asynchronously."""

import mmap
from collections.abc import Callable, Sequence

import numpy as np

from engine.kv.tiers.store import Blocks, Bytes, Label


class HostStore:
    """`capacity` slots of `block_bytes` each. Implements `BlockStore` and `Blocks`.

    `allocate` returns a number of bytes; without it, memory is committed when a slot is first
    written. `slots` is [capacity, block_bytes].
    """

    def __init__(
        self, capacity: int, block_bytes: int, *, allocate: Callable[[int], Bytes] | None = None
    ) -> None:
        data = (allocate or _committed_late)(max(1, capacity * block_bytes))
        self.slots: Bytes = data[: capacity * block_bytes].reshape(capacity, block_bytes)

    def write(
        self, slots: Sequence[int], labels: Sequence[Label], source: Blocks, blocks: Sequence[int]
    ) -> list[bool]:
        """See `BlockStore`."""
        for slot, block in zip(slots, blocks, strict=True):
            source.read_block(block, self.slots[slot])
        return [True] * len(labels)

    def read(
        self, slots: Sequence[int], keys: Sequence[bytes], target: Blocks, blocks: Sequence[int]
    ) -> list[bool]:
        """See `BlockStore`."""
        for slot, block in zip(slots, blocks, strict=True):
            target.write_block(block, self.slots[slot])
        return [True] * len(keys)

    def read_block(self, block: int, into: Bytes) -> None:
        """Copy a slot's bytes."""
        into[:] = self.slots[block]

    def write_block(self, block: int, data: Bytes) -> None:
        """Set a slot's bytes."""
        self.slots[block] = data

    def erase(self, slots: Sequence[int]) -> None:
        """See `BlockStore`."""
        self.slots[list(slots)] = 0

    def close(self) -> None:
        """See `BlockStore`: memory is freed with its last reference."""


def _committed_late(size: int) -> Bytes:
    return np.frombuffer(
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8
    )
