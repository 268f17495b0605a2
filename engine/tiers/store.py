"""What a tier's bytes lie in, and what they come from and go to."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Blocks(Protocol):
    """Equal blocks of bytes by number: those of the device's pool, or of the host's.

    May be called while a step runs: nobody writes to a block that is being moved.
    """

    def read_block(self, block: int, into: Bytes) -> None:
        """Copy a block's bytes to `into`."""
        ...

    def write_block(self, block: int, data: Bytes) -> None:
        """Make a block's bytes those of `data`."""
        ...


class BlockStore(Protocol):
    """Slots of one tier. Writes come from one thread, reads from another."""

    def write(
        self, slots: Sequence[int], keys: Sequence[bytes], source: Blocks, blocks: Sequence[int]
    ) -> list[bool]:
        """Write `blocks` of `source` to the slots; says of each whether it is there now."""
        ...

    def read(
        self, slots: Sequence[int], keys: Sequence[bytes], target: Blocks, blocks: Sequence[int]
    ) -> list[bool]:
        """Read the slots into `blocks` of `target`; says of each whether it was the key's, whole.

        What is bad is not written to the target.
        """
        ...

    def erase(self, slots: Sequence[int]) -> None:
        """Overwrite the slots with zeros."""
        ...

    def close(self) -> None:
        """Give back what the store holds."""
        ...
