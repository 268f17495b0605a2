"""Divides the work of attention among programs. Pure; needs neither torch nor Triton."""

import math
from dataclasses import dataclass

# Sequences with at most this many new tokens use the decode path: a token and its draft tokens.
MAX_DECODE_TOKENS = 8

# Approximate tokens of a split. Shorter splits use a device fully with fewer sequences, but each
# split's sums are written and read again: for 512 tokens 2 % of the K and V read, with groups of
# four heads.
_SPLIT_TOKENS = 512

# Parts that a merge adds at a time.
MERGED_SPLITS = 16

_LEAST_TILE = 16  # of a tensor core, in each direction

# A program may have 227 KiB on Hopper, on others from 99 (Ada) to 163 (A100).
_HOPPER_SHARED_BYTES = 200 * 1024

# The compiler's pipeline needs two stages to look up a page one iteration ahead: 5 stages leave two
# buffers of K and V, 3 leave one.
_TWO_BUFFERS = 5
_ONE_BUFFER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Inputs of the tiling. `group`: query heads per KV head; `shared_bytes`: of one program."""

    group: int
    head_dim: int
    page_size: int  # tokens
    itemsize: int  # bytes of a value in computation
    shared_bytes: int

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one head's values, padded."""
        return self.padded_dim * self.itemsize

    @property
    def padded_dim(self) -> int:
        """The power of two that heads are padded to."""
        return max(_LEAST_TILE, _power_of_two(self.head_dim))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """A program's tile: `rows` of (query, head of the group), `slots` of keys at a time.

    `turn_keys`: keys are rotated to their positions; otherwise queries to the page's base, and
    `slots` divides the page. `split_pages`: pages of a split, 0 if contexts are not split.
    """

    rows: int
    slots: int
    turn_keys: bool
    split_pages: int
    warps: int
    stages: int

    def queries(self, group: int) -> int:
        """Return the maximum number of queries of a sequence in a tile."""
        return self.rows // group


def decode_tiling(shapes: Shapes) -> Tiling:
    """Tile few queries over long contexts.

    With 16 rows, of which few are in use, it is cheapest to rotate the queries once per page, which
    needs one line of the table of angles. If no tile divides the page, its keys are rotated.
    """
    narrow = shapes.bytes_per_row <= 256
    fitting = [
        slots for slots in ((64, 32, 16) if narrow else (16,)) if shapes.page_size % slots == 0
    ]
    slots = fitting[0] if fitting else 32 if narrow else 16
    return Tiling(
        rows=max(_LEAST_TILE, _power_of_two(shapes.group)),
        slots=slots,
        turn_keys=not fitting,
        split_pages=_split_pages(shapes.page_size, slots),
        warps=2 if narrow and slots == _LEAST_TILE else 4,
        stages=_TWO_BUFFERS,
    )


def prefill_tiling(shapes: Shapes) -> Tiling:
    """Tile many queries: a tile of keys is rotated once for all of them, and may span pages.

    The sizes fit into the registers. A tile within one page needs one line of angles. Otherwise
    each slot needs a line, so the tile has half the size.
    """
    if shapes.itemsize > 2:  # no tensor cores: for comparisons, not for speed
        rows, slots, warps, stages = 16, 16, 8, _ONE_BUFFER
    elif shapes.bytes_per_row > 256:
        rows, slots, warps, stages = 64, 16, 8, _ONE_BUFFER
    elif shapes.shared_bytes < _HOPPER_SHARED_BYTES:
        rows, slots, warps, stages = 64, 32, 4, _ONE_BUFFER
    else:
        rows, slots, warps, stages = 128, 32 if shapes.page_size % 64 else 64, 8, _TWO_BUFFERS
    return Tiling(
        rows=max(rows, _power_of_two(shapes.group)),
        slots=slots,
        turn_keys=True,
        split_pages=0,
        warps=warps,
        stages=stages,
    )


def _split_pages(page_size: int, slots: int) -> int:
    """Return a number of pages whose tokens are a multiple of a tile's slots."""
    whole = slots // math.gcd(slots, page_size)
    return max(1, round(_SPLIT_TOKENS / (page_size * whole))) * whole


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
