"""The host tier: slots in main memory, pinned where the device copies from it by itself."""

import mmap
from collections.abc import Sequence

import numpy as np

from engine.tiers.store import Blocks, Bytes


class HostStore:
    """`capacity` slots of `block_bytes` each. Implements `BlockStore` and `Blocks`.

    Memory is committed when a slot is first written, unless it is pinned.
    """

    def __init__(self, capacity: int, block_bytes: int, *, pinned: bool = False) -> None:
        size = max(1, capacity * block_bytes)
        self._slots = (_pinned(size) if pinned else _committed_late(size))[
            : capacity * block_bytes
        ].reshape(capacity, block_bytes)

    def write(
        self, slots: Sequence[int], keys: Sequence[bytes], source: Blocks, blocks: Sequence[int]
    ) -> list[bool]:
        """See `BlockStore`."""
        for slot, block in zip(slots, blocks, strict=True):
            source.read_block(block, self._slots[slot])
        return [True] * len(keys)

    def read(
        self, slots: Sequence[int], keys: Sequence[bytes], target: Blocks, blocks: Sequence[int]
    ) -> list[bool]:
        """See `BlockStore`."""
        for slot, block in zip(slots, blocks, strict=True):
            target.write_block(block, self._slots[slot])
        return [True] * len(keys)

    def read_block(self, block: int, into: Bytes) -> None:
        """Copy a slot's bytes."""
        into[:] = self._slots[block]

    def write_block(self, block: int, data: Bytes) -> None:
        """Set a slot's bytes."""
        self._slots[block] = data

    def erase(self, slots: Sequence[int]) -> None:
        """See `BlockStore`."""
        self._slots[list(slots)] = 0

    def close(self) -> None:
        """See `BlockStore`: memory goes with its last reference."""


def _committed_late(size: int) -> Bytes:
    return np.frombuffer(
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8
    )


def _pinned(size: int) -> Bytes:
    import torch

    array: Bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return array
