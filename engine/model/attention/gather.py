"""Attention over gathered rows, for backends without kernels for pages. Loop thread only.

Each layer copies out the context's K and V row by row. Only valid slots are read, so the contents
of unused slots (even NaN) do not matter. K that is stored rotated by its slot is rotated to its
position. Sequences with one new token are padded and computed together; a sequence with more is
computed alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.files.model_spec import ModelSpec
from engine.kv.tensors import KvStore
from engine.model.batch import Batch, Contexts, Ints
from engine.model.layers import Arithmetic, Ops

# Limits the copies (K, rotated K, V) of one call when many contexts are long.
MAX_GATHERED_TOKENS = 16_384

# (queries [b, n, heads, dim], K and V [b, T, kv_heads, dim], mask [b, n, T]) to
# [b, n, heads, dim]; b is 1 unless n is 1
AttendPart = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherPart:
    """Sequences that are computed together: b sequences, n queries each, T rows of context.

    A mask is 0 where a query sees a row, else minus infinity.
    """

    queries: Tensor  # [b * n] places in [N]
    rows: Tensor  # [b * T] rows of the KV store; padding repeats the sequence's first row
    rotation: Tensor | None  # [b, T, 1, head_dim // 2, 2] by the base of the row's block
    full_mask: Tensor  # [b, n, T]
    window_mask: Tensor  # [b, n, T]; the same tensor when the model has no sliding window


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherStep:
    """A prepared step; implements AttentionStep."""

    spec: ModelSpec
    ops: Ops
    attend_part: AttendPart
    store: KvStore
    parts: Sequence[GatherPart]

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """See AttentionStep."""
        out = torch.empty_like(queries)
        windowed = self.spec.window_layers[layer]
        for part in self.parts:
            mask = part.window_mask if windowed else part.full_mask
            b, n, context = mask.shape
            keys, values = self.store.gather(layer, part.rows)
            keys = keys.to(queries.dtype).view(b, context, *keys.shape[1:])
            values = values.to(queries.dtype).view(b, context, *values.shape[1:])
            if part.rotation is not None:
                keys = self.ops.rotate(keys, part.rotation)
            chosen = queries.index_select(0, part.queries).view(b, n, *queries.shape[1:])
            attended = self.attend_part(chosen, keys, values, mask)
            out.index_copy_(0, part.queries, attended.flatten(0, 1))
        return out.flatten(1)


class GatherAttention:
    """A backend that copies out K and V row by row. `attend_part` is its arithmetic."""

    def __init__(
        self, name: str, attend_part: AttendPart, spec: ModelSpec, arithmetic: Arithmetic
    ) -> None:
        self.name = name
        self._attend_part = attend_part
        self._spec = spec
        self._arithmetic = arithmetic
        self._rotations = arithmetic.table

    def prepare(self, batch: Batch, store: KvStore) -> GatherStep:
        """See AttentionBackend."""
        contexts = batch.contexts(store)
        return GatherStep(
            spec=self._spec,
            ops=self._arithmetic.ops,
            attend_part=self._attend_part,
            store=store,
            parts=[
                self._part(batch, contexts, members, rotates=store.position_form == "slot")
                for members in _groups(batch)
            ],
        )

    def _part(
        self, batch: Batch, contexts: Contexts, members: Ints, *, rotates: bool
    ) -> GatherPart:
        starts = batch.context_starts[members]
        lengths = batch.context_starts[members + 1] - starts
        counts = batch.query_starts[members + 1] - batch.query_starts[members]
        n = counts[0]
        ordinals = np.arange(lengths.max())
        places = starts[:, None] + np.where(ordinals < lengths[:, None], ordinals, 0)
        queries = batch.query_starts[members, None] + np.arange(n)
        # a query sees its context up to itself; the n queries are the context's last n tokens
        last_seen = lengths[:, None] - n + np.arange(n)
        seen = ordinals <= last_seen[:, :, None]
        full_mask = window_mask = self._mask(seen)
        if self._spec.sliding_window is not None:
            distance = batch.positions[queries][:, :, None] - contexts.positions[places][:, None]
            window_mask = self._mask(seen & (distance < self._spec.sliding_window))
        rotation = None
        if rotates:
            by_base = self._rotations.at(contexts.bases[places.ravel()])
            rotation = by_base.view(*places.shape, 1, -1, 2)
        return GatherPart(
            queries=self._index(queries),
            rows=self._index(contexts.rows[places]),
            rotation=rotation,
            full_mask=full_mask,
            window_mask=window_mask,
        )

    def _mask(self, seen: np.ndarray) -> Tensor:
        mask = torch.zeros(seen.shape, dtype=self._arithmetic.dtype, device=self._arithmetic.device)
        return mask.masked_fill_(torch.from_numpy(~seen).to(self._arithmetic.device), -torch.inf)

    def _index(self, places: Ints) -> Tensor:
        return torch.from_numpy(places.ravel()).to(self._arithmetic.device)


def _groups(batch: Batch) -> list[Ints]:
    """Group the sequences: one with several new tokens alone, others by similar length.

    Less than half of a group is padding, and its rows stay below the limit (or it is one sequence).
    """
    lengths = np.diff(batch.context_starts)
    counts = np.diff(batch.query_starts)
    groups: list[list[int]] = [[member] for member in np.flatnonzero(counts > 1).tolist()]
    single = np.flatnonzero(counts == 1)
    group: list[int] = []
    for member in single[np.argsort(-lengths[single], kind="stable")].tolist():
        longest = lengths[group[0]] if group else 0
        if 2 * lengths[member] < longest or (len(group) + 1) * longest > MAX_GATHERED_TOKENS:
            groups.append(group)
            group = []
        group.append(member)
    if group:
        groups.append(group)
    return [np.array(members) for members in groups]
