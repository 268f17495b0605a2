"""The weights of one layer, and of all layers that are on the device. Loop thread only."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, Protocol

from torch import Tensor

from engine.model.weights.quantized import Matrix, QuantizedMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer. Matrices are [out, in]."""

    attention_norm: Tensor  # [hidden]
    qkv: Matrix  # [(heads + 2 * kv_heads) * head_dim, hidden]
    qkv_bias: Tensor | None
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    output: Matrix  # [hidden, heads * head_dim]
    output_bias: Tensor | None
    mlp_norm: Tensor  # [hidden]
    gate_up: Matrix  # [2 * intermediate, hidden]
    down: Matrix  # [hidden, intermediate]

    def tensors(self) -> Iterator[Tensor]:
        """All tensors of the layer."""
        for field in fields(self):
            yield from tensors_of(getattr(self, field.name))

    def moved(self, move: Callable[[Tensor], Tensor]) -> "LayerWeights":
        """Return the layer with each tensor replaced by the result of `move`, in their order."""
        values: dict[str, Any] = {
            field.name: _moved(getattr(self, field.name), move) for field in fields(self)
        }
        return replace(self, **values)


class Layers(Protocol):
    """All layers, on the device or in main memory."""

    @property
    def num_bytes(self) -> int:
        """Bytes that they take on the device."""
        ...

    def walk(self, count: int | None = None) -> Iterator[LayerWeights]:
        """Yield the first `count` layers, or all, in their order.

        A layer's tensors are valid until the next layer is requested. Work that was enqueued in the
        device's compute stream before that may still read them.
        """
        ...


class ResidentLayers:
    """Layers on the device."""

    def __init__(self, layers: Sequence[LayerWeights]) -> None:
        self._layers = tuple(layers)

    @property
    def num_bytes(self) -> int:
        """See Layers."""
        return sum(tensor.nbytes for layer in self._layers for tensor in layer.tensors())

    def walk(self, count: int | None = None) -> Iterator[LayerWeights]:
        """See Layers."""
        return islice(self._layers, count)


def tensors_of(matrix: Matrix | None) -> Iterator[Tensor]:
    """All tensors of a matrix."""
    if isinstance(matrix, Tensor):
        yield matrix
    elif matrix is not None:
        yield from (part.data for part in matrix.parts)


def _moved(value: Matrix | None, move: Callable[[Tensor], Tensor]) -> Matrix | None:
    match value:
        case None:
            return None
        case QuantizedMatrix():
            parts = tuple(replace(part, data=move(part.data)) for part in value.parts)
            return replace(value, parts=parts)
        case _:
            return move(value)
