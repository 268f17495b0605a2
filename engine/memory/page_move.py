"""KV that goes to other slots because its tokens have other positions now. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.ids import BlockId


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMove:
    """What a block is to hold in its first slots, where K lies rotated by its position.

    `sources`: block and slot of each token's KV now. `shifts`: by how many positions each one's K
    is turned on the way; up to 0, for tokens only ever move up.
    """

    target: BlockId
    sources: Sequence[tuple[BlockId, int]]
    shifts: Sequence[int]


MovePages = Callable[[Sequence[PageMove]], None]
"""Makes moves in their order: sources of one are never read after its target, or a later one's, was
written. Sources of a later one may be read before."""
