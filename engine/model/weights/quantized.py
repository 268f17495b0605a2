"""Matrices that keep a GGUF file's quantised format until they are used. Loop thread only.

The values equal those of the `gguf` package's dequantisers bit for bit: the same float32 operations
in the same order. Block formats: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.planning.formats import GGML_TYPES

# Values that are dequantised at once: limits the float32 copies beside the matrix itself.
_VALUES_AT_ONCE = 2**24
_SIZES = {kind.name.upper(): kind for kind in GGML_TYPES.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedRows:
    """Rows of one format, as bytes [rows, bytes of a row]."""

    kind: str  # as in `QUANTIZED`
    data: Tensor

    @property
    def columns(self) -> int:
        """Values of a row."""
        return self.data.shape[1] // _SIZES[self.kind].num_bytes * _SIZES[self.kind].values

    def values(self) -> Tensor:
        """Return all as float32 [rows, columns]."""
        blocks = self.data.reshape(-1, _SIZES[self.kind].num_bytes)
        return QUANTIZED[self.kind](blocks).view(len(self.data), self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedMatrix:
    """A matrix [out, in] in parts of consecutive rows; each part has its own format."""

    parts: tuple[QuantizedRows, ...]
    dtype: torch.dtype

    def dense(self) -> Tensor:
        """Return the matrix [out, in] in its type, in new memory."""
        shape = (sum(len(part.data) for part in self.parts), self.parts[0].columns)
        whole = torch.empty(shape, dtype=self.dtype, device=self.parts[0].data.device)
        start = 0
        for part in self.parts:
            at_once = max(1, _VALUES_AT_ONCE // part.columns)
            for first in range(0, len(part.data), at_once):
                some = QuantizedRows(kind=part.kind, data=part.data[first : first + at_once])
                whole[start : start + len(some.data)] = some.values()
                start += len(some.data)
        return whole

    def rows(self, places: Tensor) -> Tensor:
        """Return some rows [n, in] of a matrix of one part."""
        (part,) = self.parts
        chosen = QuantizedRows(kind=part.kind, data=part.data.index_select(0, places))
        return chosen.values().to(self.dtype)


Matrix = Tensor | QuantizedMatrix


def dense(matrix: Matrix) -> Tensor:
    """Return a matrix in the form for multiplication."""
    return matrix.dense() if isinstance(matrix, QuantizedMatrix) else matrix


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float() * _halves(blocks[:, :2])


def _q4_0(blocks: Tensor) -> Tensor:
    return _halves(blocks[:, :2]) * (_nibbles(blocks[:, 2:], 16).to(torch.int8) - 8).float()


def _q4_1(blocks: Tensor) -> Tensor:
    scaled = _halves(blocks[:, :2]) * _nibbles(blocks[:, 4:], 16).float()
    return scaled + _halves(blocks[:, 2:4])


def _q4_k(blocks: Tensor) -> Tensor:
    count = len(blocks)
    first, second, third = blocks[:, 4:16].reshape(count, 3, 4).unbind(1)
    # 6 bits each: the top two bits of the last four groups are in the bytes of the first four
    scales = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), 1)
    minima = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), 1)
    scaled = (_halves(blocks[:, :2]) * scales.float())[:, :, None]
    lowest = (_halves(blocks[:, 2:4]) * minima.float())[:, :, None]
    return scaled * _nibbles(blocks[:, 16:], 32).view(count, 8, 32).float() - lowest


def _q6_k(blocks: Tensor) -> Tensor:
    count = len(blocks)
    low = _nibbles(blocks[:, :128], 64)
    high = _shifted(blocks[:, 128:192], 32, (0, 2, 4, 6)) & 3
    scaled = _halves(blocks[:, 208:]) * blocks[:, 192:208].view(torch.int8).float()
    quants = ((low | (high << 4)).to(torch.int8) - 32).float()
    return scaled[:, :, None] * quants.view(count, 16, 16)


def _halves(block_bytes: Tensor) -> Tensor:
    return block_bytes.view(torch.float16).float()


def _nibbles(block_bytes: Tensor, run: int) -> Tensor:
    """The low nibbles of each run of bytes, then their high ones [blocks, 2 x bytes]."""
    return _shifted(block_bytes, run, (0, 4)) & 15


def _shifted(block_bytes: Tensor, run: int, shifts: tuple[int, ...]) -> Tensor:
    """Each run of bytes, shifted by each number in turn.

    The shifts are not a tensor: a captured step can't copy one from the host.
    """
    runs = block_bytes.reshape(len(block_bytes), -1, run)
    return torch.stack([runs >> by for by in shifts], 2).flatten(1)


# to float32 from blocks [blocks, bytes of a block]
QUANTIZED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
