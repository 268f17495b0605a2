"""Interfaces of tier storage, and of its sources and targets."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Label(NamedTuple):
    """Label of a stored block: its chain key, and its owner (8 bytes, see `owner_id`)."""

    key: bytes
    owner: bytes


class Blocks(Protocol):
    """Equal blocks of bytes by number: those of the device's pool, or of the host's.

    May be called while a step runs: blocks in transfer are never written by others.
    """

    def read_block(self, block: int, into: Bytes) -> None:
        """Copy a block's bytes to `into`."""
        ...

    def write_block(self, block: int, data: Bytes) -> None:
        """Replace a block's bytes by `data`."""
        ...


class BlockStore(Protocol):
    """Slots of one tier. Writes come from one thread, reads from another."""

    def write(
        self, slots: Sequence[int], labels: Sequence[Label], source: Blocks, blocks: Sequence[int]
    ) -> list[bool]:
        """Write `blocks` of `source` to the slots; return for each whether it is stored."""
        ...

    def read(
        self, slots: Sequence[int], keys: Sequence[bytes], target: Blocks, blocks: Sequence[int]
    ) -> list[bool]:
        """Read the slots into `blocks` of `target`; return for each whether it was intact.

        A damaged block is not written to the target.
        """
        ...

    def erase(self, slots: Sequence[int]) -> None:
        """Overwrite the slots with zeros."""
        ...

    def close(self) -> None:
        """Free the store's resources."""
        ...
