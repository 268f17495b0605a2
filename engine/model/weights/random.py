"""Weights that no file has, drawn by name: for measurements of shapes, and checks of arithmetic."""

from math import prod
from zlib import crc32

import torch
from torch import Tensor

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
