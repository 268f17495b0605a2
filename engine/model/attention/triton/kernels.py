"""Paged attention over position-free blocks, in Triton.

K in slot s of a block is stored rotated by s only, so a score is <q, R(base) k>, where q has its
absolute rotation and R rotates pairs of values by the angles of a position. There are two ways:

- Rotate the query by -base: [ROWS, DIM] values for each page, nothing for its keys. This is cheap
  where rows are few (decode: the heads of one group, 16 rows on a tensor core) and a page fills a
  tile of keys.
- Rotate the keys by base: [SLOTS, DIM] values for a tile of keys, however many rows use it. This is
  cheap where rows are many (prefill), and a tile of keys may span several pages.

`tiling.py` chooses. Both compute in float32 and round once to the type of the tensor cores.

A program has one tile: some queries of one sequence, times the heads of one KV head's group. It
walks over its pages with an online softmax (Milakov and Gimelshein, arXiv 1805.02867). A long
context of few queries is split over programs at fixed page numbers, independent of its end and of
the rest of the batch, and `merge_splits` adds the parts in the order of the pages (flash-decoding,
Dao et al. 2023). Rows of a tile share no sum. A token's result therefore has the same bits alone,
in a batch, and among draft tokens.

Slots outside a page's valid range are never loaded, so their contents (even NaN) affect no result.
"""

import triton
import triton.language as tl


@triton.jit
def _turn(x, angles, SIGN: tl.constexpr):
    """Rotate neighbouring pairs of x [n, D] by angles [n or 1, D] of (cosine, sine) pairs."""
    even, odd = tl.split(tl.reshape(x.to(tl.float32), (x.shape[0], x.shape[1] // 2, 2)))
    cosine, sine = tl.split(tl.reshape(angles, (angles.shape[0], angles.shape[1] // 2, 2)))
    sine = sine * SIGN
    return tl.interleave(even * cosine - odd * sine, odd * cosine + even * sine)


@triton.jit
def _page_span(tile, split, WINDOW: tl.constexpr, SPLIT_PAGES: tl.constexpr):
    """Return the first page and the end of the pages of one split of a tile."""
    first = tl.load(tile + 5) if WINDOW else 0
    end = tl.load(tile + 4)
    if SPLIT_PAGES:
        first = tl.maximum(first, split * SPLIT_PAGES)
        end = tl.minimum(end, (split + 1) * SPLIT_PAGES)
    return first, end


@triton.jit
def _keys_at(
    at, pages, end_page, SLOTS: tl.constexpr, PAGE_SIZE: tl.constexpr, ONE_PAGE: tl.constexpr
):
    """Return block, slot, validity, base and ordinal of the next SLOTS slots of a sequence.

    If all slots lie in one page, the values of the page are scalars.
    """
    if ONE_PAGE:
        entry = pages + at // PAGE_SIZE * 5
        slot = at % PAGE_SIZE + tl.arange(0, SLOTS)
        block, first, last = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
        base, before = tl.load(entry + 3), tl.load(entry + 4)
    else:
        place = at + tl.arange(0, SLOTS)
        entry = pages + place // PAGE_SIZE * 5
        slot = place % PAGE_SIZE
        is_page = place // PAGE_SIZE < end_page
        block = tl.load(entry, mask=is_page, other=0)
        first = tl.load(entry + 1, mask=is_page, other=0)
        last = tl.load(entry + 2, mask=is_page, other=-1)
        base = tl.load(entry + 3, mask=is_page, other=0)
        before = tl.load(entry + 4, mask=is_page, other=0)
    is_slot = (slot >= first) & (slot <= last)
    return block.to(tl.int64), slot, is_slot, base, before + slot - first


@triton.jit
def _angles_at(
    base, rotations, is_slot, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ONE_PAGE: tl.constexpr
):
    """Return the angles [1 or SLOTS, DIM] of the bases; `rotations` begins at position 0."""
    dims = tl.arange(0, DIM)[None, :]
    if ONE_PAGE:
        lines, mask = base, dims < HEAD_DIM
    else:
        lines, mask = base[:, None], is_slot[:, None] & (dims < HEAD_DIM)
    return tl.load(rotations + lines * HEAD_DIM + dims, mask=mask, other=0.0)


@triton.jit
def _score(queries, keys, angles, TURN_KEYS: tl.constexpr):
    """Return <q, R(base) k> [ROWS, SLOTS]; TURN_KEYS decides which side is rotated."""
    if TURN_KEYS:
        keys = _turn(keys, angles, 1).to(queries.dtype)
    else:
        queries = _turn(queries, angles, -1).to(queries.dtype)
    return tl.dot(queries, tl.trans(keys), input_precision="ieee")


@triton.jit
def _absorb(most, total, sums, scores, values):
    """Add a tile of keys to the online softmax; scores are in base 2."""
    now_most = tl.maximum(most, tl.max(scores, 1))
    # a row without any key yet: minus infinity minus itself would be NaN
    shift = tl.where(now_most == -float("inf"), 0.0, now_most)
    shares = tl.exp2(scores - shift[:, None])
    shrink = tl.exp2(most - shift)
    sums = tl.dot(shares.to(values.dtype), values, sums * shrink[:, None], input_precision="ieee")
    return now_most, total * shrink + tl.sum(shares, 1), sums


@triton.jit
def attend_pages(
    queries,  # [N, heads, HEAD_DIM]
    keys,  # [blocks, PAGE_SIZE, kv_heads, HEAD_DIM], any stride from block to block
    values,  # as keys
    rotations,  # [positions, HEAD_DIM // 2, 2] cosine and sine, position 0 first
    pages,  # [E, 5] see tables.py
    tiles,  # [T, 8] see tables.py
    out,  # [N, heads, HEAD_DIM]; with SPLIT_PAGES the parts [parts, heads, HEAD_DIM]
    weights,  # with SPLIT_PAGES: [parts, heads, 2], maximum and sum; else unused
    query_stride,
    block_stride,
    slot_stride,
    scale,  # of scores, for exponentials to base 2
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,  # the power of two that heads are padded to
    GROUP: tl.constexpr,  # query heads of a KV head
    PAGE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    TURN_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,  # tokens that a query sees, itself included; 0: all
    SPLIT_PAGES: tl.constexpr,  # 0: not split
):
    """Attend from a tile of queries to its pages, or to those of one split."""
    ONE_PAGE: tl.constexpr = PAGE_SIZE % SLOTS == 0
    tl.static_assert(ONE_PAGE or TURN_KEYS, "queries are rotated for one page at a time")
    tile = tiles + tl.program_id(0) * 8
    split = tl.program_id(2)
    first_page, end_page = _page_span(tile, split, WINDOW, SPLIT_PAGES)
    if SPLIT_PAGES:
        if first_page >= end_page:
            return
    query = tl.arange(0, ROWS) // GROUP
    head = tl.program_id(1) * GROUP + tl.arange(0, ROWS) % GROUP
    is_row = query < tl.load(tile + 1)
    ordinal, position = tl.load(tile + 6) + query, tl.load(tile + 7) + query
    dims = tl.arange(0, DIM)[None, :]
    row_mask = is_row[:, None] & (dims < HEAD_DIM)
    place = (tl.load(tile) + query).to(tl.int64)
    at_query = place * query_stride + head * HEAD_DIM
    mine = tl.load(queries + at_query[:, None] + dims, mask=row_mask, other=0.0)
    pages += tl.load(tile + 3) * 5

    most = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, DIM), tl.float32)
    # starts at a multiple of SLOTS, so that the tiles are the same whatever a window excludes
    for at in tl.range(first_page * PAGE_SIZE // SLOTS * SLOTS, end_page * PAGE_SIZE, SLOTS):
        block, slot, is_slot, base, key_ordinal = _keys_at(
            at, pages, end_page, SLOTS, PAGE_SIZE, ONE_PAGE
        )
        angles = _angles_at(base, rotations, is_slot, HEAD_DIM, DIM, ONE_PAGE)
        kv_at = block * block_stride + slot * slot_stride + tl.program_id(1) * HEAD_DIM
        kv_mask = is_slot[:, None] & (dims < HEAD_DIM)
        key = tl.load(keys + kv_at[:, None] + dims, mask=kv_mask, other=0.0)
        value = tl.load(values + kv_at[:, None] + dims, mask=kv_mask, other=0.0)
        scores = _score(mine, key.to(mine.dtype), angles, TURN_KEYS) * scale
        seen = is_slot[None, :] & (key_ordinal[None, :] <= ordinal[:, None])
        if WINDOW:
            seen = seen & (position[:, None] - (base + slot)[None, :] < WINDOW)
        scores = tl.where(seen, scores, -float("inf"))
        most, total, sums = _absorb(most, total, sums, scores, value.to(mine.dtype))

    heads = tl.num_programs(1) * GROUP
    if SPLIT_PAGES:
        splits = tl.cdiv(tl.load(tile + 4), SPLIT_PAGES)
        place = (tl.load(tile + 2) + query * splits + split).to(tl.int64)
        tl.store(weights + (place * heads + head) * 2, most, mask=is_row)
        tl.store(weights + (place * heads + head) * 2 + 1, total, mask=is_row)
    else:
        sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    at_out = (place * heads + head) * HEAD_DIM
    tl.store(out + at_out[:, None] + dims, sums.to(out.dtype.element_ty), mask=row_mask)


@triton.jit
def merge_splits(
    parts,  # [parts, heads, HEAD_DIM], weighted sums of values
    weights,  # [parts, heads, 2], maximum and sum
    tiles,  # [T, 8] see tables.py
    out,  # [N, heads, HEAD_DIM]
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,  # parts that are added at a time
    WINDOW: tl.constexpr,
    SPLIT_PAGES: tl.constexpr,
):
    """Add the parts of one query and head, in the order of the pages."""
    tile = tiles + tl.program_id(0) * 8
    query, head, heads = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    if query >= tl.load(tile + 1):
        return
    first_split = (tl.load(tile + 5) if WINDOW else 0) // SPLIT_PAGES
    splits = tl.cdiv(tl.load(tile + 4), SPLIT_PAGES)
    dims = tl.arange(0, DIM)
    most = -float("inf")
    total = 0.0
    sums = tl.zeros((DIM,), tl.float32)
    for start in tl.range(first_split // SPLITS * SPLITS, splits, SPLITS):
        split = start + tl.arange(0, SPLITS)
        is_split = (split >= first_split) & (split < splits)
        place = (tl.load(tile + 2) + query * splits + split).to(tl.int64) * heads + head
        part_most = tl.load(weights + place * 2, mask=is_split, other=-float("inf"))
        part_total = tl.load(weights + place * 2 + 1, mask=is_split, other=0.0)
        part = tl.load(
            parts + place[:, None] * HEAD_DIM + dims[None, :],
            mask=is_split[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        now_most = tl.maximum(most, tl.max(part_most, 0))
        shift = tl.where(now_most == -float("inf"), 0.0, now_most)
        grow, shrink = tl.exp2(part_most - shift), tl.exp2(most - shift)
        total = total * shrink + tl.sum(part_total * grow, 0)
        sums = sums * shrink + tl.sum(part * grow[:, None], 0)
        most = now_most
    result = sums / tl.where(total == 0.0, 1.0, total)
    place = (tl.load(tile) + query).to(tl.int64) * heads + head
    tl.store(out + place * HEAD_DIM + dims, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)
