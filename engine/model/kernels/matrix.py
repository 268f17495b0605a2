"""A weight matrix between file and kernel: quantised values with scales, packed into tiles."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from engine.model.kernels.library import Bytes, Format
from engine.planning.native_sizes import COLUMN_MULTIPLE, GROUP, TILE_ROWS, packed_bytes

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]
Ints = npt.NDArray[np.int64]

_Item = TypeVar("_Item", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """[rows, columns] weights; scales and minima per group of 32 columns.

    `values` holds Q4_1 and Q4_0 as 0..15 and Q8_0 as q + 128, a byte each; BF16 as the bits.
    """

    format: Format
    values: npt.NDArray[Any]  # [rows, columns]
    scales: Halves | None = None  # [rows, groups]
    minima: Halves | None = None  # [rows, groups], Q4_1

    @property
    def rows(self) -> int:
        """Rows of the matrix: outputs of the layer."""
        return len(self.values)

    @property
    def columns(self) -> int:
        """Columns of the matrix: inputs of the layer."""
        return int(self.values.shape[1])

    def take_rows(self, order: Ints) -> "Matrix":
        """Return rows in another order."""
        return replace(
            self,
            values=self.values[order],
            scales=None if self.scales is None else self.scales[order],
            minima=None if self.minima is None else self.minima[order],
        )

    def padded(self, row_multiple: int) -> "Matrix":
        """Pad with zeros to a multiple of `row_multiple` rows and of 64 columns."""
        rows = -self.rows % row_multiple
        columns = -self.columns % COLUMN_MULTIPLE
        if not rows and not columns:
            return self
        groups = (self.columns + columns) // GROUP
        return replace(
            self,
            values=_padded(self.values, self.rows + rows, self.columns + columns),
            scales=None if self.scales is None else _padded(self.scales, self.rows + rows, groups),
            minima=None if self.minima is None else _padded(self.minima, self.rows + rows, groups),
        )

    def dequantize(self) -> Floats:
        """Return the weights in float32."""
        if self.format is Format.BF16:
            return _floats_of_bfloats(self.values.astype(np.uint16))
        grouped = self.values.astype(np.float32).reshape(self.rows, -1, GROUP)
        grouped -= {Format.Q4_1: 0.0, Format.Q4_0: 8.0, Format.Q8_0: 128.0}[self.format]
        if self.scales is not None:
            grouped *= self.scales.astype(np.float32)[:, :, None]
        if self.minima is not None:
            grouped += self.minima.astype(np.float32)[:, :, None]
        return grouped.reshape(self.rows, self.columns)

    @property
    def packed_bytes(self) -> int:
        """Size of the packed form, padded to whole tiles and 64 columns."""
        return packed_bytes(self.format.name, self.rows, self.columns)

    def pack(self, out: Bytes) -> None:
        """Write the tiles (see linear_*.c) into [packed_bytes]; the matrix must be padded."""
        tiles, groups = self.rows // TILE_ROWS, self.columns // GROUP
        if self.format is Format.BF16:
            pairs = self.values.view(np.uint32).reshape(tiles, TILE_ROWS, -1)
            out.view(np.uint32).reshape(tiles, -1, TILE_ROWS)[...] = pairs.transpose(0, 2, 1)
            return
        quads: npt.NDArray[Any] = self.values.view(np.uint32).reshape(tiles, TILE_ROWS, groups, 8)
        quads = quads.transpose(0, 2, 3, 1)  # [tile, group, quad of columns, row]
        if self.format is not Format.Q8_0:
            quads = quads[:, :, 0::2] | quads[:, :, 1::2] << 4
        scales = [_by_tile(each, tiles) for each in (self.scales, self.minima) if each is not None]
        if self.format is Format.Q4_1:
            whole = out.reshape(tiles, groups, -1)
            whole[:, :, :64] = np.concatenate(scales, axis=2).view(np.uint8)
            whole[:, :, 64:] = np.ascontiguousarray(quads).view(np.uint8).reshape(tiles, groups, -1)
            return
        whole = out.reshape(tiles, groups // 2, -1)
        whole[:, :, :64] = scales[0].reshape(tiles, groups // 2, -1).view(np.uint8)
        whole[:, :, 64:] = (
            np.ascontiguousarray(quads).view(np.uint8).reshape(tiles, groups // 2, -1)
        )


def stack(matrices: Sequence[Matrix]) -> Matrix:
    """Concatenate the rows of matrices of one format and width."""
    first = matrices[0]

    def joined(parts: list[Halves | None]) -> Halves | None:
        there = [part for part in parts if part is not None]
        return np.concatenate(there) if there else None

    return replace(
        first,
        values=np.concatenate([each.values for each in matrices]),
        scales=joined([each.scales for each in matrices]),
        minima=joined([each.minima for each in matrices]),
    )


def quantize(weights: Floats) -> Matrix:
    """Round float32 [rows, columns] to Q8_0: scale = max |w| / 127 per group, half precision."""
    weights = _padded(weights, len(weights), -(-weights.shape[1] // GROUP) * GROUP)
    grouped = weights.reshape(len(weights), -1, GROUP)
    scales = (np.abs(grouped).max(axis=2) / 127).astype(np.float16)
    divisors = scales.astype(np.float32)
    divisors[divisors == 0] = 1
    # clipped, since a scale that was rounded down would give 128
    values = np.clip(np.rint(grouped / divisors[:, :, None]), -127, 127) + 128
    return Matrix(
        format=Format.Q8_0, values=values.astype(np.uint8).reshape(weights.shape), scales=scales
    )


def round_to_bfloat(weights: Floats) -> Matrix:
    """Round float32 [rows, columns] to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(weights).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return Matrix(format=Format.BF16, values=rounded.astype(np.uint16))


def _floats_of_bfloats(bits: npt.NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _padded(array: npt.NDArray[_Item], rows: int, columns: int) -> npt.NDArray[_Item]:
    if array.shape == (rows, columns):
        return array
    whole = np.zeros((rows, columns), dtype=array.dtype)
    whole[: array.shape[0], : array.shape[1]] = array
    return whole


def _by_tile(scales: Halves, tiles: int) -> Halves:
    """Return [tile, group, row] of [rows, groups]."""
    by_tile = scales.reshape(tiles, TILE_ROWS, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(by_tile)
