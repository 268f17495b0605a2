"""Moves of KV to other slots, since the positions of its tokens have changed. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.ids import BlockId


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMove:
    """New contents of a block's first slots, where K is rotated by its position.

    `sources`: current block and slot of each token's KV. `shifts`: by how many positions each K is
    rotated; 0 at most, since tokens only ever move up.
    """

    target: BlockId
    sources: Sequence[tuple[BlockId, int]]
    shifts: Sequence[int]


MovePages = Callable[[Sequence[PageMove]], None]
"""Performs moves in order: no move reads a source after its target, or a later one's, was written.
Sources of a later move may be read earlier."""
