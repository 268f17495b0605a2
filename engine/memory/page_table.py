"""A session's page table: which block slots hold the KV of which positions. Loop thread only."""

from typing import NamedTuple

from engine.ids import BlockId


class PageEntry(NamedTuple):
    """One block of a session.

    Slots `first`..`last` (both included) are valid; slot s holds the token at position
    `base` + s. K in slot s is stored rotated by s only, so a block can serve at any base.
    """

    block: BlockId
    first: int
    last: int
    base: int
