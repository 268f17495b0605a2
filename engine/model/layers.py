"""The arithmetic of a Llama layer, and the table of rotary positions."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own name for it
from torch import Tensor

from engine.files.model_spec import RopeSpec

_TABLE_CHUNK = 2048
# A base is negative when a block's first valid slot holds an early position (base = pos - slot).
_TABLE_START = -1024


class Ops(Protocol):
    """Operations of a layer besides attention. x is [rows, features] unless stated otherwise."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x @ weight.T + bias; weight is [out, in]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
        ...

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up, where gate and up are the halves of the last dimension."""
        ...

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Rotate x [..., head_dim] by rotation [..., head_dim // 2, 2] (cosine, sine).

        Values 2i and 2i + 1 are pair i (see engine.model.weights.load), as in RoFormer
        (arXiv 2104.09864, equation 34).
        """
        ...


class TorchOps:
    """Stock torch kernels, whose summation order is unspecified."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Ops."""
        return F.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return F.rms_norm(x, (x.shape[-1],), None, eps) * weight

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """See Ops."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        """See Ops. One complex multiplication; 16-bit values are rotated in float32."""
        pairs = torch.view_as_complex(x.to(rotation.dtype).view(*x.shape[:-1], -1, 2))
        rotated = torch.view_as_real(pairs * torch.view_as_complex(rotation))
        return rotated.flatten(-2).to(x.dtype)


class RotaryTable:
    """Cosine and sine of every position's angles, grown on demand. Loop thread only.

    Grows in chunks of one size, so that the values of a position are always the same.
    """

    def __init__(
        self, rope: RopeSpec, head_dim: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        # float32 as in transformers: the rounding of the frequencies is part of the model
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies = 1.0 / rope.theta**exponents
        if rope.frequency_divisors is not None:
            frequencies = frequencies / torch.tensor(rope.frequency_divisors, dtype=torch.float32)
        self._frequencies = frequencies.double().numpy()
        self._dtype = dtype
        self._device = device
        self._table = self._chunk(_TABLE_START)

    def at(self, positions: npt.NDArray[np.int64]) -> Tensor:
        """Return [n, head_dim // 2, 2] (cosine, sine) for n positions of -1024 or more."""
        if len(positions):
            self._grow(int(positions.max()))
        places = torch.from_numpy(positions - _TABLE_START).to(self._device)
        return self._table.index_select(0, places)

    def from_zero(self, last: int) -> Tensor:
        """Return a view of the lines of positions 0 to `last`, or more.

        Lines of negative positions lie before them in the same memory. When the table grows it
        moves to other memory, and the view keeps the old lines.
        """
        self._grow(last)
        return self._table[-_TABLE_START:]

    def _grow(self, last: int) -> None:
        while last >= _TABLE_START + len(self._table):
            chunk = self._chunk(_TABLE_START + len(self._table))
            self._table = torch.cat((self._table, chunk))

    def back(self, distances: npt.NDArray[np.int64]) -> Tensor:
        """As `at`, for rotations back by these distances."""
        lines = self.at(distances)
        lines[..., 1].neg_()
        return lines

    def _chunk(self, start: int) -> Tensor:
        angles = np.outer(np.arange(start, start + _TABLE_CHUNK), self._frequencies)
        table = np.stack((np.cos(angles), np.sin(angles)), axis=-1)
        return torch.from_numpy(table).to(self._device, self._dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """How and where a model computes. `dtype` is that of weights and activations."""

    ops: Ops
    table: RotaryTable
    dtype: torch.dtype
    device: torch.device
