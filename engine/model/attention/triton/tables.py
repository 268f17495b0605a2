"""A step's page tables and tiles as the kernels read them. Numpy only.

A page is [block, first valid slot, last, base position, tokens of its sequence before it]. A tile
is, column by column, what `TILE` names.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.model.attention.triton.tiling import MAX_DECODE_TOKENS
from engine.model.batch import Batch, Ints

Table = npt.NDArray[np.int32]

TILE = (
    "first_query",  # in [N]
    "queries",  # number of consecutive queries
    "part",  # number of its first part, of `queries` times splits
    "first_page",  # of its sequence, in [E]
    "pages",  # of its sequence that its last query may see
    "window_page",  # first page, counted from first_page, of its first query's window
    "ordinal",  # of its first query: number of tokens of its sequence before it
    "position",  # of its first query
)
PAGE_COLUMNS = 5
_NEXT_SEQUENCE = 1 << 40  # more than any position


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Tiles of one kind: `rows` [T, 8], the number of their parts, the maximum splits of a tile."""

    rows: Table
    parts: int
    splits: int


def page_rows(batch: Batch) -> Table:
    """Return the pages [E, 5] of all sequences."""
    starts = _page_places(batch) - np.repeat(batch.context_starts[:-1], np.diff(batch.page_starts))
    return np.column_stack((batch.pages, starts)).astype(np.int32)


def decoding(batch: Batch) -> npt.NDArray[np.bool_]:
    """Return which sequences [B] use the decode path."""
    return np.diff(batch.query_starts) <= MAX_DECODE_TOKENS


def tiles_of(
    batch: Batch,
    members: Ints,
    *,
    queries_per_tile: int,
    split_pages: int,
    window: int | None,
) -> Tiles:
    """Cut the new tokens of some sequences into tiles.

    Splits begin at fixed pages of a sequence, every `split_pages` pages (0: one split).
    """
    counts = np.diff(batch.query_starts)[members]
    each = -(-counts // queries_per_tile)
    owner = np.repeat(members, each)
    within = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    first = batch.query_starts[owner] + within * queries_per_tile
    queries = np.minimum(queries_per_tile, batch.query_starts[owner + 1] - first)
    # the new tokens are the last of their context
    place = batch.context_starts[owner + 1] - batch.query_starts[owner + 1] + first
    first_page = batch.page_starts[owner]
    last_seen = place + queries - 1
    pages = np.searchsorted(_page_places(batch), last_seen, side="right") - first_page
    splits = -(-pages // split_pages) if split_pages else np.ones_like(pages)
    parts = queries * splits
    columns = (
        first,
        queries,
        np.cumsum(parts) - parts,
        first_page,
        pages,
        _window_pages(batch, owner, batch.positions[first], window),
        place - batch.context_starts[owner],
        batch.positions[first],
    )
    return Tiles(
        rows=np.column_stack(columns).astype(np.int32),
        parts=int(parts.sum()),
        splits=int(splits.max(initial=1)),
    )


def _page_places(batch: Batch) -> Ints:
    """Return the place of each page's first valid slot among all context tokens [C]."""
    lengths: Ints = batch.pages[:, 2] - batch.pages[:, 1] + 1
    places: Ints = np.cumsum(lengths) - lengths
    return places


def _window_pages(batch: Batch, owner: Ints, positions: Ints, window: int | None) -> Ints:
    if window is None:
        return np.zeros_like(owner)
    sequences = np.repeat(np.arange(len(batch.page_starts) - 1), np.diff(batch.page_starts))
    last_positions = batch.pages[:, 3] + batch.pages[:, 2]
    pages = np.searchsorted(
        last_positions + sequences * _NEXT_SEQUENCE,
        positions - window + 1 + owner * _NEXT_SEQUENCE,
    )
    return pages - batch.page_starts[owner]
