"""Arithmetic whose results depend on nothing but its operands: fixed order, own exponential.

Only elementwise additions, multiplications, divisions and square roots are used: IEEE 754 rounds
each of them exactly, whatever the vector width, the memory layout or the number of threads.
Library sums and exponentials promise no such thing.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own name for it
from torch import Tensor

_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # few bits, so that its small multiples are exact
_LN2_LOW = math.log(2) - _LN2_HIGH
_LOWEST_EXPONENT = -700.0
_TAYLOR = [1 / math.factorial(power) for power in range(13, -1, -1)]


def fixed_sum(x: Tensor) -> Tensor:
    """Sum over the last dimension pairwise, padded with zeros to a power of two.

    Zeros at the end change no bit, so a padded row sums like a short one.
    """
    width = x.shape[-1]
    half = 1 << (width - 1).bit_length()
    x = F.pad(x, (0, half - width))
    while half > 1:
        half //= 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def fixed_exp(x: Tensor) -> Tensor:
    """Return e^x within a few units of the last place; x is at most 700, float64.

    x = k ln 2 + r, then Taylor's polynomial for r and k into the exponent's bits.
    """
    x = x.clamp(min=_LOWEST_EXPONENT)
    k = torch.floor(x * (1 / math.log(2)) + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    result = torch.full_like(r, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        result = result * r + coefficient
    return result * ((k.long() + 1023) << 52).view(torch.float64)


class FixedOrderOps:
    """Implements engine.model.layers.Ops in fixed order."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Ops."""
        result = fixed_sum(x[..., None, :] * weight)
        return result if bias is None else result + bias

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        mean = fixed_sum(x * x)[..., None] / x.shape[-1]
        return x / torch.sqrt(mean + eps) * weight

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """See Ops."""
        gate, up = gate_up.chunk(2, dim=-1)
        return gate / (1 + fixed_exp((-gate).clamp(max=-_LOWEST_EXPONENT))) * up

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        """See Ops."""
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        first, second = pairs[..., 0], pairs[..., 1]
        cosine, sine = rotation[..., 0], rotation[..., 1]
        turned = (first * cosine - second * sine, first * sine + second * cosine)
        return torch.stack(turned, dim=-1).flatten(-2)
