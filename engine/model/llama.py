"""The forward pass of the Llama family over one step's batch. Loop thread only.

Llama, Mistral, Qwen2 (biases on q, k, v) and Qwen3 (norms on q and k) differ in what their spec
and weights hold, not in code. Pre-norm, SwiGLU, grouped queries: arXiv 2302.13971, 2305.13245.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own name for it
from torch import Tensor

from engine.files.model_spec import ModelSpec
from engine.memory.kv_store import KvStore
from engine.model.attention.protocol import AttentionBackend, AttentionStep
from engine.model.batch import Batch, Ints
from engine.model.layers import Arithmetic
from engine.model.weights.load import LayerWeights, ModelWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What all layers of one step share."""

    store: KvStore
    attention: AttentionStep
    write_rows: Tensor  # [N]
    rotation: Tensor  # [N, heads + kv_heads, head_dim // 2, 2]: q by position, k as it is stored


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
        self.attention = attention
        self.arithmetic = arithmetic

    def forward(self, batch: Batch, store: KvStore, num_layers: int | None = None) -> Tensor:
        """Store KV of all new tokens; return the logits [S, vocab] of those that are sampled.

        `num_layers` less than the model's stops early (the profiling step needs one layer only).
        """
        ops, eps = self.arithmetic.ops, self.spec.rms_norm_eps
        step = self._prepare(batch, store)
        x = F.embedding(self._index(batch.token_ids), self.weights.embedding)
        for layer, weights in enumerate(self.weights.layers[:num_layers]):
            normed = ops.rms_norm(x, weights.attention_norm, eps)
            x = x + self._attend(layer, weights, normed, step)
            normed = ops.rms_norm(x, weights.mlp_norm, eps)
            x = x + ops.linear(
                ops.swiglu(ops.linear(normed, weights.gate_up, None)), weights.down, None
            )
        last = x.index_select(0, self._index(batch.sampled))
        return ops.linear(ops.rms_norm(last, self.weights.norm, eps), self.weights.head, None)

    def _prepare(self, batch: Batch, store: KvStore) -> _Step:
        spec, table = self.spec, self.arithmetic.table
        by_position = table.at(batch.positions)[:, None].expand(-1, spec.num_heads, -1, -1)
        stored = batch.slots if store.position_form == "slot" else batch.positions
        as_stored = table.at(stored)[:, None].expand(-1, spec.num_kv_heads, -1, -1)
        return _Step(
            store=store,
            attention=self.attention.prepare(batch, store),
            write_rows=self._index(batch.write_rows),
            rotation=torch.cat((by_position, as_stored), dim=1),
        )

    def _attend(self, layer: int, weights: LayerWeights, x: Tensor, step: _Step) -> Tensor:
        spec, ops = self.spec, self.arithmetic.ops
        qkv = ops.linear(x, weights.qkv, weights.qkv_bias).view(len(x), -1, spec.head_dim)
        both = spec.num_heads + spec.num_kv_heads
        qk, values = qkv[:, :both], qkv[:, both:]
        if weights.qk_norm is not None:
            qk = ops.rms_norm(qk, weights.qk_norm, spec.rms_norm_eps)
        qk = ops.rotate(qk, step.rotation)
        step.store.write(layer, step.write_rows, qk[:, spec.num_heads :], values)
        attended = step.attention.attend(layer, qk[:, : spec.num_heads])
        return ops.linear(attended, weights.output, weights.output_bias)

    def _index(self, places: Ints) -> Tensor:
        return torch.from_numpy(places).to(self.arithmetic.device)
