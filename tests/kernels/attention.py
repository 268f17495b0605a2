"""Attention over pages by the kernels, checked against plain arithmetic."""

from ctypes import c_void_p
from dataclasses import dataclass

import numpy as np

from engine.model.kernels.library import (
    PARTIAL_HEADER,
)
from engine.model.kernels.matrix import round_to_bfloat
from engine.planning.native_sizes import BLOCK_TOKENS
from tests.kernels.support import AttentionTile, KvLayer, at


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A layer of attention and the ranges of valid slots of a page table's entries."""

    ranges: tuple[tuple[int, int], ...]
    rows: int
    kv_heads: int
    group: int
    head_dim: int
    window: int
    is_float: bool
    is_int8: bool = False

    @property
    def head_bytes(self):
        """Of K, or of V, of one head in a block."""
        values = self.head_dim * BLOCK_TOKENS
        return values + 4 * BLOCK_TOKENS if self.is_int8 else values * (4 if self.is_float else 2)


class Context:
    """K and V of a random sequence, written by the kernel into scattered, poisoned blocks."""

    def __init__(self, kernels, shape, seed, scatter=1):
        self.kernels, self.shape = kernels, shape
        rng = np.random.default_rng(seed)
        count = sum(last - first + 1 for first, last in shape.ranges)
        heads, dim = shape.kv_heads, shape.head_dim
        self.keys = rng.standard_normal((count, heads, dim)).astype(np.float32)
        self.values = rng.standard_normal((count, heads, dim)).astype(np.float32)
        width = heads * shape.group * dim
        self.queries = rng.standard_normal((shape.rows, width)).astype(np.float32)
        self.rotation = rotation(dim, count + 16 + BLOCK_TOKENS * len(shape.ranges))
        blocks = np.random.default_rng(scatter).permutation(len(shape.ranges) + scatter)
        block_bytes = 2 * heads * shape.head_bytes
        # all ones is not a number in any type: of int8, the scale
        self.pool = np.full((len(blocks), block_bytes), 255, dtype=np.uint8)
        self.kv = KvLayer(
            pool=at(self.pool),
            block_bytes=block_bytes,
            kv_heads=heads,
            group=shape.group,
            head_dim=dim,
            window=shape.window,
            is_float=shape.is_float,
            is_int8=shape.is_int8,
            rotation=at(self.rotation),
        )
        self.entries = np.zeros((len(shape.ranges), 4), dtype=np.int32)
        self.places = []  # of each token: entry, slot
        position = 0
        for index, (first, last) in enumerate(shape.ranges):
            self.entries[index] = blocks[index], first, last, position - first
            self.places += [(index, slot) for slot in range(first, last + 1)]
            position += last - first + 1
        for token in range(count):
            self.write(token, self.keys[token])

    def write(self, token, key):
        """Write a token's K and V into its slot."""
        entry, slot = self.places[token]
        block, changed = int(self.entries[entry, 0]), key.copy()
        self.kernels.write_kv(self.kv, block, slot, at(changed), at(self.values[token]), None, 0.0)

    def attend(self, first_row, rows, segment, *, streaming=0, kv_heads=None):
        """Outputs [rows, heads * head_dim] of some rows together, segment by segment."""
        shape = self.shape
        first_head, end_head = kv_heads or (0, shape.kv_heads)
        tokens = [len(self.places) - shape.rows + first_row + row for row in range(rows)]
        positions = np.array(tokens, dtype=np.int32)
        row_entries, row_slots = np.array([self.places[t] for t in tokens], dtype=np.int32).T.copy()
        queries = self.queries[first_row : first_row + rows].copy()
        tile = AttentionTile(
            entries=at(self.entries),
            queries=at(queries),
            positions=at(positions),
            row_entries=at(row_entries),
            row_slots=at(row_slots),
            query_stride=queries.shape[1],
            rows=rows,
            first_kv_head=first_head,
            end_kv_head=end_head,
            streaming=streaming,
        )
        vectors = rows * (end_head - first_head) * shape.group
        attend = self.kernels.attend_int8 if shape.is_int8 else self.kernels.attend
        merged = np.zeros((vectors, PARTIAL_HEADER + shape.head_dim), dtype=np.float32)
        for start in range(0, int(row_entries[-1]) + 1, segment):
            end = min(start + segment, int(row_entries[-1]) + 1)
            part = np.zeros_like(merged)
            attend(self.kv, tile, start, end, at(part))
            self.kernels.merge(at(merged), at(part), vectors, shape.head_dim)
        out = np.zeros((end_head - first_head, rows, shape.group, shape.head_dim), np.float32)
        flat = out.reshape(vectors, -1)
        places = (c_void_p * vectors)(*(at(flat[v]) for v in range(vectors)))
        self.kernels.finish(at(merged), vectors, shape.head_dim, places)
        return out.transpose(1, 0, 2, 3).reshape(rows, -1)

    def stored(self):
        """Scales and values [tokens, heads, K or V, (dim)] as they lie in the pool in int8."""
        shape, dim = self.shape, self.shape.head_dim
        scales = np.zeros((len(self.places), shape.kv_heads, 2, 1), np.float32)
        values = np.zeros((len(self.places), shape.kv_heads, 2, dim), np.int8)
        for token, (entry, slot) in enumerate(self.places):
            halves = self.pool[self.entries[entry, 0]].reshape(2, shape.kv_heads, shape.head_bytes)
            for head in range(shape.kv_heads):
                keys, into = halves[:, head, : dim * BLOCK_TOKENS].view(np.int8)
                values[token, head, 0] = keys.reshape(dim // 2, BLOCK_TOKENS, 2)[:, slot].ravel()
                values[token, head, 1] = into.reshape(-1, dim, 2)[slot // 2, :, slot % 2]
                ends = halves[:, head, dim * BLOCK_TOKENS :].copy().view(np.float32)
                scales[token, head, :, 0] = ends[:, slot]
        return scales, values

    def keys_and_values(self):
        """What attention may see of the pool, as float64."""
        shape = self.shape
        if shape.is_int8:
            scales, values = self.stored()
            both = rounded(scales * values.astype(np.float32), is_float=False)
            return both[:, :, 0], both[:, :, 1]
        slots = np.array([slot for _, slot in self.places])
        keys = rotated(self.keys, self.rotation[slots][:, None])
        return rounded(keys, shape.is_float), rounded(self.values, shape.is_float)

    def exact(self):
        """The same in float64, each row over what it may see."""
        shape, heads = self.shape, self.shape.kv_heads
        count = len(self.places)
        keys, values = self.keys_and_values()
        out = np.zeros((shape.rows, heads, shape.group, shape.head_dim))
        for row in range(shape.rows):
            token = count - shape.rows + row
            oldest = max(0, token - shape.window + 1) if shape.window else 0
            bases = np.array([self.entries[e, 3] for e, _ in self.places])
            for head in range(heads):
                for member in range(shape.group):
                    start = (head * shape.group + member) * shape.head_dim
                    query = self.queries[row, start : start + shape.head_dim]
                    seen = range(oldest, token + 1)
                    turned = rounded(
                        np.stack([rotated(query, self.rotation[token - bases[t]]) for t in seen]),
                        shape.is_float,
                    )
                    scores = (turned * keys[oldest : token + 1, head]).sum(axis=1)
                    weights = 2.0 ** (scores - scores.max())
                    weights /= weights.sum()
                    out[row, head, member] = weights @ values[oldest : token + 1, head]
        return out.reshape(shape.rows, -1)


def rotation(head_dim, rows):
    angles = np.outer(np.arange(rows), 100.0 ** (-np.arange(0, head_dim, 2) / head_dim))
    return np.concatenate((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)


def rotated(x, table):
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    cosine, sine = np.split(table.astype(np.float64), 2, axis=-1)
    return np.concatenate((a * cosine - b * sine, b * cosine + a * sine), axis=-1)


def rounded(x, is_float):
    if is_float:
        return x.astype(np.float64)
    return round_to_bfloat(x.astype(np.float32).reshape(1, -1)).dequantize().reshape(x.shape)


def check_attention(kernels, shape, seed):
    """Against float64, and bit for bit against other tiles, places, head ranges and hints."""
    context = Context(kernels, shape, seed)
    most = max(1, 12 // shape.group)
    alone = np.concatenate([context.attend(row, 1, 3) for row in range(shape.rows)])
    tolerance = 1e-5 if shape.is_float else 2e-2
    np.testing.assert_allclose(alone, context.exact(), rtol=tolerance, atol=tolerance)
    tiles = [
        np.concatenate(
            [
                context.attend(
                    start, min(most, shape.rows - start), 3, kv_heads=(head, head + 1), streaming=1
                )
                for start in range(0, shape.rows, most)
            ]
        )
        for head in range(shape.kv_heads)
    ]
    np.testing.assert_array_equal(np.concatenate(tiles, axis=1), alone)
    elsewhere = Context(kernels, shape, seed, scatter=5)
    again = np.concatenate([elsewhere.attend(row, 1, 3) for row in range(shape.rows)])
    np.testing.assert_array_equal(again, alone)


def check_int8_kv(kernels, shape, seed):
    """Each slot's values lie within half a step of its own scale, where the layout says."""
    context = Context(kernels, shape, seed)
    slots = np.array([slot for _, slot in context.places])
    keys = rotated(context.keys, context.rotation[slots][:, None])
    exact = np.stack((keys, context.values.astype(np.float64)), axis=2)
    scales, values = context.stored()
    np.testing.assert_allclose(scales[..., 0], np.abs(exact).max(axis=-1) / 127, rtol=1e-5)
    assert (np.abs(scales * values.astype(np.float64) - exact) <= scales * 0.5001).all()


def check_bad_key(kernels, shape, token):
    """A key that is no number does not pass for one that is masked."""
    context = Context(kernels, shape, seed=1)
    context.write(token, np.full_like(context.keys[token], np.nan))
    assert np.isnan(context.attend(shape.rows - 1, 1, 3)).all()
