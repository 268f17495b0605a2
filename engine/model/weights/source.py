"""What a reader of weights offers to the loader, and random weights drawn by name.

Random weights serve measurements of shapes and checks of arithmetic.
"""

from math import prod
from typing import Protocol
from zlib import crc32

import torch
from torch import Tensor

from engine.model.weights.quantized import QuantizedRows


class TensorSource(Protocol):
    """Tensors of one model by their name in transformers, whatever the file calls them.

    `pairs_interleaved`: the rows of q and k hold a rotary pair as neighbours (as GGUF files of
    Llama models do), not half a head apart (as transformers does).
    """

    pairs_interleaved: bool

    def has(self, name: str) -> bool:
        """Say whether the file holds a tensor."""
        ...

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor as floating point, in memory of its own.

        Raises:
            ModelFileError: missing, of another shape, of an unknown type, or cut off.
        """
        ...

    def read_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedRows | None:
        """Read a matrix as quantised as the file has it, None if it is floating point there.

        Raises:
            ModelFileError: as `read` does.
        """
        ...


_FEW = 2**22  # values: so many are drawn on the CPU, where any device's model draws the same
_NORM_SPREAD = 0.1


class RandomTensors:
    """Implements `TensorSource`.

    A tensor depends on its name and shape, and a large one on the device that it is drawn on, too.
    Matrices keep the size of what they are given, so that logits stay finite at any depth, and
    those of attention are large enough that a token's past shows in its logits.
    """

    pairs_interleaved = False

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def has(self, name: str) -> bool:
        """No model has more than its spec says."""
        return name == ""

    def read_quantized(self, name: str, shape: tuple[int, ...]) -> None:
        """See TensorSource. All is drawn as floating point."""

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Draw a tensor."""
        device = torch.device("cpu") if prod(shape) <= _FEW else self._device
        generator = torch.Generator(device).manual_seed(crc32(name.encode()))
        values = torch.randn(shape, generator=generator, device=device)
        if len(shape) == 1:
            return values * _NORM_SPREAD + (0.0 if name.endswith(".bias") else 1.0)
        scale: float = shape[-1] ** -0.5
        return values * (2 * scale if "self_attn" in name else scale)
