"""Paged KV by hand for tests of kernels: any shape, NaN in every slot that no table names, and
dense float64 attention over the same tokens. On a GPU where kernels are not interpreted."""

import dataclasses
import os

import torch

from engine.kv.step import SequenceStep
from engine.kv.tensors import KvStore
from engine.model.attention.triton.backend import TritonAttention
from engine.model.batch import build_batch
from engine.model.layers import Arithmetic, RotaryTable, TorchOps
from tests.laws.law_model import law_spec

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
WINDOW = 11
TOLERANCE = {torch.float32: 4e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def spec_of(*, group=2, kv_heads=1, head_dim=16):
    """Two layers; the second has a window."""
    return dataclasses.replace(
        law_spec(),
        num_heads=group * kv_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        sliding_window=WINDOW,
        window_layers=(False, True),
    )


def arithmetic_of(spec, dtype=torch.float32):
    rotary = RotaryTable(spec.rope, spec.head_dim, dtype=torch.float32, device=DEVICE)
    return Arithmetic(ops=TorchOps(), table=rotary, dtype=dtype, device=DEVICE)


def turned(spec, x, positions):
    """Rotate [n, heads, dim] in float64, pairs as neighbours, written out as in the paper."""
    frequencies = 1 / spec.rope.theta ** (torch.arange(0, spec.head_dim, 2) / spec.head_dim)
    angles = torch.tensor(positions).double()[:, None, None] * frequencies.double()
    even, odd = x[..., ::2], x[..., 1::2]
    parts = (even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos())
    return torch.stack(parts, -1).flatten(-2)


def dense(spec, queries, keys, values, *, positions, window):
    """Attend with rotated q [n, heads, dim] and the context's raw K, V and positions."""
    n, context = len(queries), len(keys)
    group = spec.num_heads // spec.num_kv_heads
    keys = turned(spec, keys, positions).repeat_interleave(group, 1)
    scores = torch.einsum("nhd,thd->hnt", queries, keys) / spec.head_dim**0.5
    place = torch.tensor(positions)
    seen = torch.arange(context) <= torch.arange(context - n, context)[:, None]
    if window is not None:
        seen &= place[-n:, None] - place < window
    scores = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hnt,thd->nhd", scores, values.repeat_interleave(group, 1)).flatten(1)


class Paged:
    """A store with random K and V wherever `tables` say, and a step over it.

    `counts`: new tokens of each sequence, the last of its table.
    """

    def __init__(
        self,
        spec,
        tables,
        counts,
        *,
        page_size=16,
        dtype=torch.float32,
        kv_dtype=None,
        seed=0,
    ):
        self.spec, self.tables, self.counts, self.dtype = spec, tables, counts, dtype
        kv_dtype = kv_dtype or dtype
        blocks = 1 + max(entry.block for entries in tables for entry in entries)
        self.store = KvStore(
            spec, num_blocks=blocks, block_size=page_size, dtype=kv_dtype, device=DEVICE
        )
        self.store._pool.view(torch.uint8).fill_(0xFF)  # noqa: SLF001 -- NaN in every type
        generator = torch.Generator().manual_seed(seed)
        shape = (blocks, page_size, spec.num_kv_heads, spec.head_dim)
        keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
        slots = list(range(page_size)) * blocks
        keys = turned(spec, keys.double().flatten(0, 1), slots).to(kv_dtype)
        self.keys = turned(spec, keys.double(), [-slot for slot in slots]).view(shape)
        self.values = values.to(kv_dtype).double()
        places = {
            (entry.block, slot)
            for entries in tables
            for entry in entries
            for slot in range(entry.first, entry.last + 1)
        }
        for layer in range(spec.num_layers):
            for block, slot in places:
                stored = (keys.view(shape)[block, slot], values[block, slot].to(kv_dtype))
                for into, value in zip(self.store.layer(layer), stored, strict=True):
                    into[block, slot].view(torch.uint8).copy_(value.view(torch.uint8))
        self.queries = torch.randn(
            (sum(counts), spec.num_heads, spec.head_dim), generator=generator
        ).to(dtype)
        self.batch = build_batch(self.steps(), self.store)

    def steps(self):
        return [
            SequenceStep(
                token_ids=[0] * count,
                first_position=self.positions(entries)[-count],
                entries=entries,
                sample=None,
            )
            for entries, count in zip(self.tables, self.counts, strict=True)
        ]

    def positions(self, entries):
        return [base + slot for _, first, last, base in entries for slot in range(first, last + 1)]

    def expected(self, layer):
        """[N, heads * dim] in float64, sequence by sequence."""
        window = WINDOW if self.spec.window_layers[layer] else None
        queries = self.queries.double().split(self.counts)
        parts = []
        for entries, mine in zip(self.tables, queries, strict=True):
            places = [(block, slot) for block, f, last, _ in entries for slot in range(f, last + 1)]
            blocks, slots = map(list, zip(*places, strict=True))
            keys, values = self.keys[blocks, slots], self.values[blocks, slots]
            parts.append(
                dense(
                    self.spec,
                    mine,
                    keys,
                    values,
                    positions=self.positions(entries),
                    window=window,
                )
            )
        return torch.cat(parts)

    def backend(self):
        return TritonAttention(self.spec, arithmetic_of(self.spec, self.dtype))

    def attended(self, layer, step=None):
        step = step or self.backend().prepare(self.batch, self.store)
        return step.attend(layer, self.queries.to(DEVICE)).cpu()

    def check(self):
        step = self.backend().prepare(self.batch, self.store)
        for layer in range(self.spec.num_layers):
            torch.testing.assert_close(
                self.attended(layer, step).double(),
                self.expected(layer),
                atol=TOLERANCE[self.dtype],
                rtol=0,
            )
