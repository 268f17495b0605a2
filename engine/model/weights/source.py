"""Interface of weight readers, and random weights by name.

Random weights are for measurements of shapes and checks of arithmetic.
"""

from math import prod
from typing import Protocol
from zlib import crc32

import torch
from torch import Tensor

from engine.model.weights.quantized import QuantizedRows


class TensorSource(Protocol):
    """Tensors of one model by their names in transformers.

    `pairs_interleaved`: the values of a rotary pair are neighbours in the rows of q and k, as in
    GGUF files of Llama models; otherwise they are half a head apart, as in transformers.
    """

    pairs_interleaved: bool

    def has(self, name: str) -> bool:
        """Whether the file has this tensor."""
        ...

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor as floating point, in new memory.

        Raises:
            ModelFileError: missing, of another shape, of an unknown type, or cut off.
        """
        ...

    def read_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedRows | None:
        """Read a matrix in the file's quantised format; None if it is floating point there.

        Raises:
            ModelFileError: as for `read`.
        """
        ...


_FEW = 2**22  # values: up to this size the CPU draws a tensor, so that it is the same on any device
_NORM_SPREAD = 0.1


class RandomTensors:
    """Implements `TensorSource`.

    A tensor depends on its name and shape; a large one also on the device that draws it. Matrices
    preserve the scale of their inputs, so that logits stay finite at any depth. Those of attention
    are large enough for a token's past to affect its logits.
    """

    pairs_interleaved = False

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def has(self, name: str) -> bool:
        """No model has a tensor beyond its spec."""
        return name == ""

    def read_quantized(self, name: str, shape: tuple[int, ...]) -> None:
        """See TensorSource. All tensors are floating point."""

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Draw a tensor."""
        device = torch.device("cpu") if prod(shape) <= _FEW else self._device
        generator = torch.Generator(device).manual_seed(crc32(name.encode()))
        values = torch.randn(shape, generator=generator, device=device)
        if len(shape) == 1:
            return values * _NORM_SPREAD + (0.0 if name.endswith(".bias") else 1.0)
        scale: float = shape[-1] ** -0.5
        return values * (2 * scale if "self_attn" in name else scale)
