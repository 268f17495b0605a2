"""The KV tensor of the block pool. Loop thread only.

Position-free ("slot"): K in slot s of a block is stored rotated by s only, so that a block is valid
at any base position. Readers of K add the base's rotation (to K, or its inverse to the query). For
kernels that do not support this, K is stored rotated by its position ("absolute"): then a block is
valid at one base only, and KV that moves to another position is copied and rotated. Such kernels
read whole pages and give masked slots weight 0: there V is always finite (0 times NaN is NaN). A
token whose V was not finite gets NaN as K: every query that attends to it gets NaN logits.
"""

import mmap
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.files.model_spec import ModelSpec
from engine.ids import BlockId
from engine.system.process_memory import keep_out_of_dumps

PositionForm = Literal["slot", "absolute"]


def kv_bytes_per_block(spec: ModelSpec, block_size: int, dtype: torch.dtype) -> int:
    """Return the bytes of one block: K and V of `block_size` tokens in all layers."""
    values = spec.num_layers * 2 * block_size * spec.num_kv_heads * spec.head_dim
    return values * dtype.itemsize


class KvStore:
    """Equal blocks, block-major: all layers of one block lie together and move as one run.

    The tensor is [blocks, layers, 2 (K, V), block, kv_heads, head_dim], zero at start; on the CPU
    its memory is committed only when a block is first written. `bytes` is [blocks, bytes a block].
    There is one block more than `num_blocks`, which is never allocated: KV that is not needed is
    written to `spare_row`.
    """

    def __init__(  # noqa: PLR0913 -- all that its memory depends on
        self,
        spec: ModelSpec,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        position_form: PositionForm = "slot",
    ) -> None:
        self.position_form = position_form
        heads, dim = spec.num_kv_heads, spec.head_dim
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.bytes_per_block = kv_bytes_per_block(spec, block_size, dtype)
        self.device = device
        self.bytes_per_token = self.bytes_per_block // block_size
        allocated = num_blocks + 1
        shape = (allocated, spec.num_layers, 2, block_size, heads, dim)
        try:
            self._pool = _zeros(allocated * self.bytes_per_block, dtype, device).view(shape)
        except (RuntimeError, OSError, MemoryError) as error:
            raise ConfigError(
                "kv_cache_memory",
                num_blocks * self.bytes_per_block,
                f"within what the device can allocate ({error})",
            ) from error
        if self._pool.device.type == "cpu":
            keep_out_of_dumps(self._pool.data_ptr(), self._pool.nbytes)
        self._rows = self._pool.view(-1, heads, dim)
        self.bytes = self._pool.view(torch.uint8).view(allocated, self.bytes_per_block)[:num_blocks]
        self._block_stride = spec.num_layers * 2 * block_size  # rows from a block to the next
        self.spare_row = num_blocks * self._block_stride

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return K and V of one layer as strided views [blocks, block, kv_heads, head_dim]."""
        pool = self._pool[: self.num_blocks]
        return pool[:, layer, 0], pool[:, layer, 1]

    def rows(
        self, blocks: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the row numbers, the same in every layer, of (block, slot) pairs."""
        return blocks * self._block_stride + slots

    def gather(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Copy out K and V [n, kv_heads, head_dim] of n rows."""
        keys, values = self._layer_rows(layer)
        return keys.index_select(0, rows), values.index_select(0, rows)

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store K (rotated by its slot or position) and V [n, kv_heads, head_dim] in n rows.

        Values that an 8-bit type can't hold are clipped to its largest value: one NaN would spoil
        every later token, and the overflow of conversions depends on device and version of torch.
        """
        if self.position_form == "absolute":
            keys, values = _with_finite_values(keys, values)
        for target, source in zip(self._layer_rows(layer), (keys, values), strict=True):
            if self._pool.dtype.itemsize > 1:
                target.index_copy_(0, rows, source.to(self._pool.dtype))
                continue
            most = torch.finfo(self._pool.dtype).max
            narrow = source.clamp(-most, most).to(self._pool.dtype)
            # torch moves rows of bytes, but has no index_copy_ for types of 8 bits
            target.view(torch.uint8).index_copy_(0, rows, narrow.view(torch.uint8))

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        """Copy all slots of all layers of one block to another."""
        self._pool[target].copy_(self._pool[source])

    def take(self, places: Sequence[tuple[BlockId, int]]) -> Tensor:
        """Copy out K and V of all layers [n, layers, 2, kv_heads, head_dim] of n (block, slot)."""
        blocks, slots = torch.tensor(places, device=self.device).T
        return self._pool[blocks, :, :, slots]

    def put(self, places: Sequence[tuple[BlockId, int]], tokens: Tensor) -> None:
        """Store what `take` returned in n other places (block, slot)."""
        blocks, slots = torch.tensor(places, device=self.device).T
        self._pool[blocks, :, :, slots] = tokens

    def read_block(self, block: int, into: npt.NDArray[np.uint8]) -> None:
        """Copy a block's bytes, all layers in a row, to the host."""
        torch.from_numpy(into).copy_(self.bytes[block])

    def write_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        """Copy bytes from the host into a block."""
        self.bytes[block].copy_(torch.from_numpy(data))

    def zero_block(self, block: BlockId) -> None:
        """Overwrite all slots of all layers of one block."""
        self._pool[block].zero_()

    def _layer_rows(self, layer: int) -> Sequence[Tensor]:
        # the views start at the layer's first row, so that row numbers hold in every layer
        start = 2 * layer * self.block_size
        return self._rows[start:], self._rows[start + self.block_size :]


def _with_finite_values(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    damaged = ~values.isfinite().all(-1, keepdim=True)
    return keys.masked_fill(damaged, torch.nan), values.masked_fill(damaged, 0)


def _zeros(num_bytes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(num_bytes // dtype.itemsize, dtype=dtype, device=device)
    # torch.zeros writes every page at once; an anonymous map is zero without being committed
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype)
