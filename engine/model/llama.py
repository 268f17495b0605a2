"""The forward pass of the Llama family over one step's batch. Loop thread only.

Llama, Mistral, Qwen2 (biases on q, k, v) and Qwen3 (norms on q and k) differ in what their spec
and weights hold, not in code. Pre-norm, SwiGLU, grouped queries: arXiv 2302.13971, 2305.13245.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own name for it
from torch import Tensor

from engine.files.model_spec import ModelSpec
from engine.kv.tensors import KvStore
from engine.model.attention.protocol import AttentionBackend, AttentionStep
from engine.model.batch import Batch, Ints
from engine.model.layers import Arithmetic
from engine.model.weights.layers import LayerWeights
from engine.model.weights.load import ModelWeights
from engine.model.weights.quantized import QuantizedMatrix, dense


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Inputs that all layers of one step share."""

    store: KvStore
    attention: AttentionStep
    write_rows: Tensor  # [N]
    rotation: Tensor  # [N, heads + kv_heads, head_dim // 2, 2]: q by position, k as it is stored


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedInputs:
    """Inputs of a captured step of N new tokens.

    `table` int64 [4, N]: token id, position, slot in its block, row of the KV store to write to.
    `lines`: the rotary table, from position 0 on. The capturing code keeps both alive.
    """

    table: Tensor
    lines: Tensor


class Llama:
    """Computes logits and writes KV."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        attention: AttentionBackend,
        arithmetic: Arithmetic,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self._layers = weights.layers
        self.attention = attention
        self.arithmetic = arithmetic

    def forward(self, batch: Batch, store: KvStore, num_layers: int | None = None) -> Tensor:
        """Store KV of all new tokens; return the logits [S, vocab] of those that are sampled.

        `num_layers` less than the model's stops early (the profiling step needs one layer only).
        """
        ids, sampled = self._index(batch.token_ids), self._index(batch.sampled)
        return self._compute(ids, self._prepare(batch, store), sampled, num_layers)

    def forward_fixed(
        self, inputs: FixedInputs, attention: AttentionStep, store: KvStore
    ) -> Tensor:
        """As `forward`, with inputs at fixed addresses; return logits [N, vocab] of all tokens."""
        token_ids, positions, slots, write_rows = inputs.table
        lines = inputs.lines
        stored = slots if store.position_form == "slot" else positions
        step = _Step(
            store=store,
            attention=attention,
            write_rows=write_rows,
            rotation=self._rotation(
                lines.index_select(0, positions), lines.index_select(0, stored)
            ),
        )
        return self._compute(token_ids, step)

    def _compute(
        self,
        token_ids: Tensor,
        step: _Step,
        sampled: Tensor | None = None,
        num_layers: int | None = None,
    ) -> Tensor:
        ops, eps = self.arithmetic.ops, self.spec.rms_norm_eps
        x = self._embed(token_ids)
        for layer, weights in enumerate(self._layers.walk(num_layers)):
            normed = ops.rms_norm(x, weights.attention_norm, eps)
            x = x + self._attend(layer, weights, normed, step)
            normed = ops.rms_norm(x, weights.mlp_norm, eps)
            inner = ops.swiglu(ops.linear(normed, dense(weights.gate_up), None))
            x = x + ops.linear(inner, dense(weights.down), None)
        last = x if sampled is None else x.index_select(0, sampled)
        head = dense(self.weights.head)
        return ops.linear(ops.rms_norm(last, self.weights.norm, eps), head, None)

    def _embed(self, token_ids: Tensor) -> Tensor:
        table = self.weights.embedding
        if isinstance(table, QuantizedMatrix):
            return table.rows(token_ids)
        return F.embedding(token_ids, table)

    def _prepare(self, batch: Batch, store: KvStore) -> _Step:
        table = self.arithmetic.table
        stored = batch.slots if store.position_form == "slot" else batch.positions
        return _Step(
            store=store,
            attention=self.attention.prepare(batch, store),
            write_rows=self._index(batch.write_rows),
            rotation=self._rotation(table.at(batch.positions), table.at(stored)),
        )

    def _rotation(self, by_position: Tensor, as_stored: Tensor) -> Tensor:
        """Lines [N, head_dim // 2, 2] of the rotary table as `_Step` has them."""
        spec = self.spec
        parts = (
            by_position[:, None].expand(-1, spec.num_heads, -1, -1),
            as_stored[:, None].expand(-1, spec.num_kv_heads, -1, -1),
        )
        return torch.cat(parts, dim=1)

    def _attend(self, layer: int, weights: LayerWeights, x: Tensor, step: _Step) -> Tensor:
        spec, ops = self.spec, self.arithmetic.ops
        qkv = ops.linear(x, dense(weights.qkv), weights.qkv_bias).view(len(x), -1, spec.head_dim)
        both = spec.num_heads + spec.num_kv_heads
        qk, values = qkv[:, :both], qkv[:, both:]
        if weights.qk_norm is not None:
            qk = ops.rms_norm(qk, weights.qk_norm, spec.rms_norm_eps)
        qk = ops.rotate(qk, step.rotation)
        step.store.write(layer, step.write_rows, qk[:, spec.num_heads :], values)
        attended = step.attention.attend(layer, qk[:, : spec.num_heads])
        return ops.linear(attended, dense(weights.output), weights.output_bias)

    def _index(self, places: Ints) -> Tensor:
        return torch.from_numpy(places).to(self.arithmetic.device)
