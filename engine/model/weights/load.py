"""Loads a model's weights into the tensors that the forward pass reads.

q, k and v are one matrix, gate and up another. The rows of q and k have the values of a rotary pair
next to each other (2i, 2i + 1), so that a rotation is one complex multiplication; in transformers
they are half a head apart. Scores are sums over pairs, so they don't depend on the order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device.protocol import Device
from engine.files.model_spec import ModelSpec
from engine.model.weights.gguf import GgufTensors
from engine.model.weights.layers import Layers, LayerWeights, ResidentLayers, tensors_of
from engine.model.weights.offload import OffloadedLayers, pack
from engine.model.weights.quantized import Matrix, QuantizedMatrix, QuantizedRows
from engine.model.weights.safetensors import SafetensorsFolder
from engine.model.weights.source import RandomTensors, TensorSource
from engine.planning.offload_sizes import offloaded_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """All weights. `head` is the embedding itself when they are tied."""

    embedding: Matrix  # [vocab, hidden]
    layers: Layers
    norm: Tensor  # [hidden]
    head: Matrix  # [vocab, hidden]
    formats: tuple[str, ...] = ()  # of matrices that stay quantised

    @property
    def num_bytes(self) -> int:
        """Bytes that they take on the device; a shared tensor counts once."""
        tensors = (*tensors_of(self.embedding), *tensors_of(self.norm), *tensors_of(self.head))
        outside = {tensor.data_ptr(): tensor.nbytes for tensor in tensors}
        return self.layers.num_bytes + sum(outside.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How weights are stored: `dtype` is the type of the computation.

    `quantized`: matrices keep the file's quantised format. `offloaded`: number of layers that stay
    in main memory; `copier` copies them to the device.
    """

    dtype: torch.dtype
    device: torch.device
    quantized: bool = False
    offloaded: int = 0
    copier: Device | None = None


def load_weights(spec: ModelSpec, keeping: Keeping) -> ModelWeights:
    """Read all weights of a spec's file or folder.

    Raises:
        ModelFileError: a tensor is missing, has another shape, or a type that can't be read.
        MemoryError: main memory for offloaded layers can't be allocated or pinned.
    """
    with _source(spec, keeping.device) as source:
        return _Loader(spec, source, keeping).load()


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
    """Reads tensors to `_device`: the model's, or the CPU for offloaded layers."""

    def __init__(self, spec: ModelSpec, source: TensorSource, keeping: Keeping) -> None:
        self._spec = spec
        self._source = source
        self._keeping = keeping
        self._device = keeping.device
        self._formats: set[str] = set()

    def load(self) -> ModelWeights:
        spec = self._spec
        table = (spec.vocab_size, spec.hidden_size)
        embedding = self._matrix(["model.embed_tokens.weight"], [table])
        head = embedding if spec.tied_embeddings else self._matrix(["lm_head.weight"], [table])
        return ModelWeights(
            embedding=embedding,
            layers=self._layers(),
            norm=self._stack(["model.norm.weight"], [(spec.hidden_size,)]),
            head=head,
            formats=tuple(sorted(self._formats)),
        )

    def _layers(self) -> Layers:
        num_layers, copier = self._spec.num_layers, self._keeping.copier
        if copier is None:
            return ResidentLayers([self._layer(layer) for layer in range(num_layers)])
        offloaded = offloaded_layers(num_layers, self._keeping.offloaded)
        on_device = [layer for layer in range(num_layers) if layer not in offloaded]
        resident = {layer: self._layer(layer) for layer in on_device}
        self._device = torch.device("cpu")
        packed = {layer: pack(self._layer(layer), copier) for layer in sorted(offloaded)}
        self._device = self._keeping.device
        return OffloadedLayers(copier, resident, packed)

    def _layer(self, layer: int) -> LayerWeights:
        spec, prefix = self._spec, f"model.layers.{layer}."
        hidden, mlp = spec.hidden_size, spec.intermediate_size
        queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        attention = prefix + "self_attn."
        qkv = [attention + name for name in ("q_proj", "k_proj", "v_proj")]
        gate_up = [prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight"]
        qkv_bias = None
        if spec.attention_bias:
            names = [name + ".bias" for name in qkv]
            qkv_bias = self._stack(names, [(queries,), (keys,), (keys,)])
        # Llama with attention_bias has this bias, too; Qwen2 does not
        output_bias = None
        if self._source.has(attention + "o_proj.bias"):
            output_bias = self._stack([attention + "o_proj.bias"], [(hidden,)])
        return LayerWeights(
            attention_norm=self._stack([prefix + "input_layernorm.weight"], [(hidden,)]),
            qkv=self._matrix(
                [name + ".weight" for name in qkv],
                [(queries, hidden), (keys, hidden), (keys, hidden)],
            ),
            qkv_bias=qkv_bias,
            qk_norm=self._qk_norm(attention) if spec.qk_norm else None,
            output=self._matrix([attention + "o_proj.weight"], [(hidden, queries)]),
            output_bias=output_bias,
            mlp_norm=self._stack([prefix + "post_attention_layernorm.weight"], [(hidden,)]),
            gate_up=self._matrix(gate_up, [(mlp, hidden)] * 2),
            down=self._matrix([prefix + "mlp.down_proj.weight"], [(hidden, mlp)]),
        )

    def _qk_norm(self, attention: str) -> Tensor:
        spec = self._spec
        names = [attention + "q_norm.weight", attention + "k_norm.weight"]
        both = self._stack(names, [(spec.head_dim,)] * 2).view(2, spec.head_dim)
        copies = torch.tensor([spec.num_heads, spec.num_kv_heads], device=self._device)
        return both.repeat_interleave(copies, 0)

    def _matrix(self, names: list[str], shapes: list[tuple[int, ...]]) -> Matrix:
        """Read matrices and concatenate their rows: quantised if all are and may stay so."""
        if not self._keeping.quantized:
            return self._stack(names, shapes)
        parts = []
        for name, shape in zip(names, shapes, strict=True):
            part = self._source.read_quantized(name, shape)
            if part is None:
                return self._stack(names, shapes)
            data = self._paired(name, part.data).to(self._device)
            parts.append(QuantizedRows(kind=part.kind, data=data))
        self._formats |= {part.kind for part in parts}
        return QuantizedMatrix(parts=tuple(parts), dtype=self._keeping.dtype)

    def _stack(self, names: list[str], shapes: list[tuple[int, ...]]) -> Tensor:
        """Read tensors and concatenate their rows."""
        rows = sum(shape[0] for shape in shapes)
        dtype = self._keeping.dtype
        whole = torch.empty((rows, *shapes[0][1:]), dtype=dtype, device=self._device)
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            whole[start : start + shape[0]] = self._paired(name, self._source.read(name, shape))
            start += shape[0]
        return whole

    def _paired(self, name: str, tensor: Tensor) -> Tensor:
        """Reorder the rows of q and k, and of their biases and norms, into pair order."""
        rotated = any(part in name for part in (".q_proj.", ".k_proj.", ".q_norm.", ".k_norm."))
        if not rotated or self._source.pairs_interleaved:
            return tensor
        halves = tensor.view(-1, 2, self._spec.head_dim // 2, *tensor.shape[1:])
        return halves.transpose(1, 2).reshape(tensor.shape)
