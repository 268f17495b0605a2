"""Loads a model's weights into the tensors that the forward pass reads.

q, k and v are one matrix, gate and up another. Rows of q and k hold each rotary pair as
neighbours (2i, 2i + 1), so that a rotation is one complex multiplication; transformers holds them
half a head apart. Scores are sums over pairs, so they don't depend on the order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from engine.files.model_spec import ModelSpec
from engine.model.weights.gguf import GgufTensors
from engine.model.weights.random import RandomTensors
from engine.model.weights.safetensors import SafetensorsFolder
from engine.model.weights.source import TensorSource


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer. Matrices are [out, in]."""

    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    qkv_bias: Tensor | None
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    output: Tensor  # [hidden, heads * head_dim]
    output_bias: Tensor | None
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [hidden, intermediate]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """All weights. `head` is the embedding itself when they are tied."""

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    head: Tensor  # [vocab, hidden]

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights; what is shared counts once."""
        tensors = [self.embedding, self.norm, self.head]
        for layer in self.layers:
            values = (getattr(layer, field.name) for field in fields(layer))
            tensors += [value for value in values if value is not None]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def load_weights(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Read all weights of a spec's file or folder and convert them to one type.

    Raises:
        ModelFileError: a tensor is missing, has another shape, or a type that can't be read.
    """
    with _source(spec, device) as source:
        return _Loader(spec, source, dtype, device).load()


@contextmanager
def _source(spec: ModelSpec, device: torch.device) -> Iterator[TensorSource]:
    match spec.format:
        case "gguf":
            with GgufTensors(spec) as tensors:
                yield tensors
        case "safetensors":
            with SafetensorsFolder(spec) as folder:
                yield folder
        case "random":
            yield RandomTensors(device)


class _Loader:
    def __init__(
        self, spec: ModelSpec, source: TensorSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._spec = spec
        self._source = source
        self._dtype = dtype
        self._device = device

    def load(self) -> ModelWeights:
        spec = self._spec
        table = (spec.vocab_size, spec.hidden_size)
        embedding = self._stack(["model.embed_tokens.weight"], [table])
        return ModelWeights(
            embedding=embedding,
            layers=tuple(self._layer(f"model.layers.{layer}.") for layer in range(spec.num_layers)),
            norm=self._stack(["model.norm.weight"], [(spec.hidden_size,)]),
            head=embedding if spec.tied_embeddings else self._stack(["lm_head.weight"], [table]),
        )

    def _layer(self, prefix: str) -> LayerWeights:
        spec = self._spec
        hidden, mlp = spec.hidden_size, spec.intermediate_size
        queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        attention = prefix + "self_attn."
        qkv = [attention + name for name in ("q_proj", "k_proj", "v_proj")]
        gate_up = [prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight"]
        qkv_bias = None
        if spec.attention_bias:
            names = [name + ".bias" for name in qkv]
            qkv_bias = self._stack(names, [(queries,), (keys,), (keys,)])
        # Llama with attention_bias has one here too, Qwen2 has none
        output_bias = None
        if self._source.has(attention + "o_proj.bias"):
            output_bias = self._stack([attention + "o_proj.bias"], [(hidden,)])
        return LayerWeights(
            attention_norm=self._stack([prefix + "input_layernorm.weight"], [(hidden,)]),
            qkv=self._stack(
                [name + ".weight" for name in qkv],
                [(queries, hidden), (keys, hidden), (keys, hidden)],
            ),
            qkv_bias=qkv_bias,
            qk_norm=self._qk_norm(attention) if spec.qk_norm else None,
            output=self._stack([attention + "o_proj.weight"], [(hidden, queries)]),
            output_bias=output_bias,
            mlp_norm=self._stack([prefix + "post_attention_layernorm.weight"], [(hidden,)]),
            gate_up=self._stack(gate_up, [(mlp, hidden)] * 2),
            down=self._stack([prefix + "mlp.down_proj.weight"], [(hidden, mlp)]),
        )

    def _qk_norm(self, attention: str) -> Tensor:
        spec = self._spec
        names = [attention + "q_norm.weight", attention + "k_norm.weight"]
        both = self._stack(names, [(spec.head_dim,)] * 2).view(2, spec.head_dim)
        copies = torch.tensor([spec.num_heads, spec.num_kv_heads], device=self._device)
        return both.repeat_interleave(copies, 0)

    def _stack(self, names: list[str], shapes: list[tuple[int, ...]]) -> Tensor:
        """Read tensors into one, below each other."""
        rows = sum(shape[0] for shape in shapes)
        whole = torch.empty((rows, *shapes[0][1:]), dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            whole[start : start + shape[0]] = self._paired(name, self._source.read(name, shape))
            start += shape[0]
        return whole

    def _paired(self, name: str, tensor: Tensor) -> Tensor:
        """Bring the rows of q and k, and of their biases and norms, into pair order."""
        rotated = any(part in name for part in (".q_proj.", ".k_proj.", ".q_norm.", ".k_norm."))
        if not rotated or self._source.pairs_interleaved:
            return tensor
        halves = tensor.view(-1, 2, self._spec.head_dim // 2, *tensor.shape[1:])
        return halves.transpose(1, 2).reshape(tensor.shape)
