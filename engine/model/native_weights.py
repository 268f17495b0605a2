"""Weights packed for the kernels, and the C structures that point at them.

q, k and v become one matrix; gate and up another, in units of 32 rows each. GGUF's Q4_1, Q4_0 and
Q8_0 are kept. In a model that has any of them, other matrices (K-quants, floats) are rounded to
Q8_0, the finest format with int8 activations. All other models use bfloat16 throughout.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.files.model_spec import ModelSpec
from engine.model.kernels.library import (
    Format,
    Layer,
    Linear,
    Memory,
    Model,
    address_of,
    aligned_zeros,
)
from engine.model.kernels.matrix import Floats, Matrix, quantize, stack
from engine.model.kernels.tensors import Tensors, as_bfloats, as_floats, open_tensors
from engine.planning.native_sizes import COLUMN_MULTIPLE, packed_bytes

_UNIT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeWeights:
    """A `Model` without pool and rotation, and the owners of the memory that it points to."""

    model: Model
    memory: Memory
    arrays: tuple[npt.NDArray[np.float32], ...]
    layers: "ctypes.Array[Layer]"
    formats: tuple[str, ...]
    num_bytes: int


def load_native_weights(
    spec: ModelSpec, library: ctypes.CDLL, *, dequantize: bool = False
) -> NativeWeights:
    """Read and pack all weights; `dequantize` keeps them as bfloat16.

    Raises:
        ModelFileError: a tensor is missing, has another shape, or a type that can't be read.
        MemoryError: there is not enough memory for them.
    """
    with open_tensors(spec) as tensors:
        return _Packer(spec, tensors, library, dequantize=dequantize).pack()


def has_quantized(spec: ModelSpec) -> bool:
    """Whether a model's layers have quantised weights.

    Raises:
        ModelFileError: the file can't be read.
    """
    with open_tensors(spec) as tensors:
        return _any_quantized(spec, tensors)


def _any_quantized(spec: ModelSpec, tensors: Tensors) -> bool:
    names = ("self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.down_proj")
    return any(
        tensors.is_quantized(f"model.layers.{layer}.{name}.weight")
        for layer in range(spec.num_layers)
        for name in names
    )


class _Packer:
    def __init__(
        self, spec: ModelSpec, tensors: Tensors, library: ctypes.CDLL, *, dequantize: bool
    ) -> None:
        self._spec = spec
        self._tensors = tensors
        self._is_bfloat = dequantize or not _any_quantized(spec, tensors)
        self._memory = Memory(library, self._most_bytes())
        self._used = 0
        self._arrays: list[Floats] = []
        self._formats: set[str] = set()

    def pack(self) -> NativeWeights:
        spec = self._spec
        layers = (Layer * spec.num_layers)(
            *(self._layer(index) for index in range(spec.num_layers))
        )
        table = (spec.vocab_size, spec.hidden_size)
        embedding = self._linear([self._matrix("model.embed_tokens.weight", table)])
        head = embedding
        if not spec.tied_embeddings:
            head = self._linear([self._matrix("lm_head.weight", table)])
        model = Model(
            layers=ctypes.cast(layers, ctypes.POINTER(Layer)),
            embedding=embedding,
            head=head,
            final_norm=self._vector("model.norm.weight", spec.hidden_size),
            num_layers=spec.num_layers,
            hidden=spec.hidden_size,
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            vocab=spec.vocab_size,
            epsilon=spec.rms_norm_eps,
            activations_are_bfloat=self._is_bfloat,
        )
        return NativeWeights(
            model=model,
            memory=self._memory,
            arrays=tuple(self._arrays),
            layers=layers,
            formats=tuple(sorted(self._formats)),
            num_bytes=self._used + sum(array.nbytes for array in self._arrays),
        )

    def _layer(self, index: int) -> Layer:
        spec, prefix = self._spec, f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        inner = (spec.intermediate_size, spec.hidden_size)
        names = [attention + name for name in ("q_proj", "k_proj", "v_proj")]
        widths = [queries, keys, keys]
        qkv = [
            self._paired(self._matrix(name + ".weight", (width, spec.hidden_size)), name)
            for name, width in zip(names, widths, strict=True)
        ]
        gate = self._matrix(mlp + "gate_proj.weight", inner)
        up = self._matrix(mlp + "up_proj.weight", inner)
        norms = (attention + "q_norm.weight", attention + "k_norm.weight")
        return Layer(
            attention_norm=self._vector(prefix + "input_layernorm.weight", spec.hidden_size),
            qkv=self._linear(qkv, self._biases(names, widths)),
            query_norm=self._vector(norms[0], spec.head_dim) if spec.qk_norm else None,
            key_norm=self._vector(norms[1], spec.head_dim) if spec.qk_norm else None,
            output=self._linear(
                [self._matrix(attention + "o_proj.weight", (spec.hidden_size, queries))],
                self._biases([attention + "o_proj"], [spec.hidden_size]),
            ),
            mlp_norm=self._vector(prefix + "post_attention_layernorm.weight", spec.hidden_size),
            gate_up=self._gate_up(gate, up),
            down=self._linear([self._matrix(mlp + "down_proj.weight", inner[::-1])]),
            window=(spec.sliding_window or 0) if spec.window_layers[index] else 0,
        )

    # --- formats -------------------------------------------------------------------------------

    def _matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        tensor = self._tensors.read(name, shape)
        if self._is_bfloat:
            return as_bfloats(tensor)
        return tensor if isinstance(tensor, Matrix) else quantize(tensor)

    def _most_bytes(self) -> int:
        """Upper bound of the bytes of all packed matrices."""
        spec = self._spec
        kind = "BF16" if self._is_bfloat else "Q8_0"
        queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        inner = -(-spec.intermediate_size // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
        layer = (
            packed_bytes(kind, queries + 2 * keys, spec.hidden_size)
            + packed_bytes(kind, spec.hidden_size, queries)
            + packed_bytes(kind, 2 * inner, spec.hidden_size)
            + packed_bytes(kind, spec.hidden_size, inner)
        )
        tables = 1 if spec.tied_embeddings else 2
        return spec.num_layers * layer + tables * packed_bytes(
            kind, spec.vocab_size, spec.hidden_size
        )

    # --- rows ----------------------------------------------------------------------------------

    def _paired(self, matrix: Matrix, name: str) -> Matrix:
        """Reorder rows of q and k for the kernels: rotary pairs half a head apart."""
        order = self._pair_order(name, matrix.rows)
        return matrix if order is None else matrix.take_rows(order)

    def _pair_order(self, name: str, rows: int) -> npt.NDArray[np.int64] | None:
        if not self._tensors.pairs_interleaved or name.endswith("v_proj"):
            return None
        order = np.arange(rows).reshape(-1, self._spec.head_dim // 2, 2)
        return order.transpose(0, 2, 1).reshape(-1)

    def _biases(self, names: Sequence[str], widths: Sequence[int]) -> Floats | None:
        if not self._tensors.has(names[0] + ".bias"):
            return None
        parts = []
        for name, width in zip(names, widths, strict=True):
            bias = as_floats(self._tensors.read(name + ".bias", (width,)))
            order = None if name.endswith("o_proj") else self._pair_order(name, width)
            parts.append(bias if order is None else bias[order])
        return np.concatenate(parts)

    def _gate_up(self, gate: Matrix, up: Matrix) -> Linear:
        """Alternate 32 rows of the gate with the same 32 of up."""
        gate, up = _alike([gate, up])
        gate, up = gate.padded(COLUMN_MULTIPLE), up.padded(COLUMN_MULTIPLE)
        rows = np.arange(gate.rows).reshape(-1, _UNIT)
        order = np.stack((rows, rows + gate.rows), axis=1).reshape(-1)
        return self._linear([stack([gate, up]).take_rows(order)])

    # --- memory --------------------------------------------------------------------------------

    def _linear(self, parts: Sequence[Matrix], bias: Floats | None = None) -> Linear:
        matrix = stack(_alike(parts)).padded(16)
        size = matrix.packed_bytes
        matrix.pack(self._memory.bytes[self._used : self._used + size])
        linear = Linear(
            tiles=self._memory.address + self._used,
            bias=None if bias is None else self._store(bias, matrix.rows),
            format=matrix.format,
            rows=matrix.rows,
            columns=matrix.columns,
        )
        self._used += size
        self._formats.add(matrix.format.name)
        return linear

    def _vector(self, name: str, size: int) -> int:
        values = as_floats(self._tensors.read(name, (size,)))
        return self._store(values, -(-size // COLUMN_MULTIPLE) * COLUMN_MULTIPLE)

    def _store(self, values: Floats, size: int) -> int:
        padded = aligned_zeros(np.float32, size)
        padded[: len(values)] = values
        self._arrays.append(padded)
        return address_of(padded)


def _alike(parts: Sequence[Matrix]) -> list[Matrix]:
    """Convert matrices of different formats to Q8_0."""
    if len({part.format for part in parts}) == 1:
        return list(parts)
    return [part if part.format is Format.Q8_0 else quantize(part.dequantize()) for part in parts]
