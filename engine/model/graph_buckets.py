"""Sizes of the captured graphs, and the choice of a graph for a step. Pure; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

SHORT_CONTEXT = 4096
"""Tokens. There are graphs for contexts up to this length, and for the longest. An attention launch
is as wide as the longest context of its graph, so most of it would be idle for short ones."""

MOST_PAGES = 16_384
"""Page-table entries of one step. Beyond it attention takes much longer than launches do."""

_STEP = 8  # between sizes from 8 on


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Capacity of a graph: rows (new tokens), entries of all page tables, and of the longest."""

    rows: int
    pages: int
    longest: int


def graph_sizes(wished: str, max_rows: int) -> tuple[int, ...]:
    """Rows of the graphs: the requested ones, else 1, 2, 4, 8, 16, 24, ... `max_rows`."""
    if wished:
        return tuple(sorted(int(size) for size in wished.split(",")))
    small = [size for size in (1, 2, 4) if size < max_rows]
    return (*small, *range(_STEP, max_rows, _STEP), max_rows)


def make_buckets(
    sizes: Sequence[int], *, max_model_len: int, block_size: int
) -> tuple[Bucket, ...]:
    """Return the buckets of these sizes, narrowest first."""
    contexts = sorted({min(SHORT_CONTEXT, max_model_len), max_model_len})
    buckets = []
    for rows in sorted(sizes):
        for context in contexts:
            longest = -(-context // block_size) + 1  # edits leave parts of pages
            pages = max(longest, min(rows * longest, MOST_PAGES))
            buckets.append(Bucket(rows=rows, pages=pages, longest=longest))
    return tuple(buckets)


def choose_bucket(
    buckets: Sequence[Bucket], *, rows: int, pages: int, longest: int
) -> Bucket | None:
    """The narrowest bucket that a step fits; None: none does.

    Padding rows take time in every layer; idle attention splits take almost none.
    """
    fitting = (
        bucket
        for bucket in buckets
        if rows <= bucket.rows and pages <= bucket.pages and longest <= bucket.longest
    )
    return min(fitting, key=lambda bucket: (bucket.rows, bucket.longest), default=None)
