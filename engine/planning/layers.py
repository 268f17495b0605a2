"""Layers of architectures beyond the Llama family, as sizes: experts, windows, latent KV. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SEVERAL = 2  # K and V, gate and up; more matrices of one size are experts


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """One layer. `matrices`: number, rows and columns; experts are several matrices of a size.

    A token's KV has `kv_heads` times `kv_head_values` values, K and V together. `window`: tokens
    that the layer keeps, None for all.
    """

    matrices: tuple[tuple[int, int, int], ...]
    vector_values: int
    kv_heads: int
    kv_head_values: int
    window: int | None = None

    @property
    def kv_values(self) -> int:
        """Values of K and V of one token."""
        return self.kv_heads * self.kv_head_values

    @property
    def matrix_values(self) -> int:
        """Weights in all matrices."""
        return sum(count * rows * columns for count, rows, columns in self.matrices)


def kv_values(layers: Iterable[LayerShape], *, windowed: bool | None = None) -> int:
    """Return the KV values of one token, in all layers or in those with (without) a window."""
    return sum(
        each.kv_values
        for each in layers
        if windowed is None or (each.window is not None) == windowed
    )


def layer_values(layers: Iterable[LayerShape]) -> int:
    """Return all weights of the layers."""
    return sum(each.matrix_values + each.vector_values for each in layers)


def part_of_layers(layers: Sequence[LayerShape], devices: int) -> tuple[LayerShape, ...]:
    """Return the part of one of several devices: rows are divided, and KV heads as far as they go.

    A latent KV (one head) is on each device in full.
    """
    return tuple(
        LayerShape(
            matrices=tuple(
                (count, -(-rows // devices), columns) for count, rows, columns in each.matrices
            ),
            vector_values=each.vector_values,
            kv_heads=-(-each.kv_heads // devices),
            kv_head_values=each.kv_head_values,
            window=each.window,
        )
        for each in layers
    )
