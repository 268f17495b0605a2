"""Launches the kernels over one model's KV store. Imports Triton. Loop thread only."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.runtime import driver

from engine.files.model_spec import ModelSpec
from engine.kv.tensors import KvStore
from engine.model.attention.triton.kernels import attend_pages, merge_splits
from engine.model.attention.triton.tables import Tiles
from engine.model.attention.triton.tiling import MERGED_SPLITS, Shapes, Tiling

_INTERPRETED_SHARED_BYTES = 227 * 1024  # enough for the largest tiles


def shared_bytes(device: torch.device) -> int:
    """Return the maximum shared memory of one program."""
    if device.type != "cuda":
        return _INTERPRETED_SHARED_BYTES
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWork:
    """Tiles on the device, and tensors for their parts (empty if no context is split)."""

    tiling: Tiling
    tiles: Tensor  # int32 [T, 8]
    splits: int  # maximum of a tile
    parts: Tensor  # float32 [parts, heads, head_dim]
    weights: Tensor  # float32 [parts, heads, 2]

    @property
    def split_pages(self) -> int:
        """Pages of a split; 0 if each tile has one split, whose result needs no merge."""
        return self.tiling.split_pages if self.splits > 1 else 0


class Launcher:
    """Launches kernels with the shapes of one model and its KV.

    `rotations` [positions, head_dim // 2, 2] begins at position 0; lines of negative positions lie
    before it in the same memory.
    """

    def __init__(
        self, *, spec: ModelSpec, store: KvStore, shapes: Shapes, rotations: Tensor
    ) -> None:
        self._spec = spec
        self._store = store
        self._shapes = shapes
        self._rotations = rotations
        self._scale = spec.head_dim**-0.5 * math.log2(math.e)

    def work(self, tiles: Tiles, tiling: Tiling) -> LaunchWork:
        """Copy tiles to the device, and allocate tensors for their parts."""
        device, heads = self._store.device, self._spec.num_heads
        count = tiles.parts if tiles.splits > 1 else 0
        return LaunchWork(
            tiling=tiling,
            tiles=torch.from_numpy(tiles.rows).to(device),
            splits=tiles.splits,
            parts=torch.empty((count, heads, self._spec.head_dim), device=device),
            weights=torch.empty((count, heads, 2), device=device),
        )

    def attend(
        self, layer: int, queries: Tensor, pages: Tensor, work: LaunchWork, out: Tensor
    ) -> None:
        """Write the results of the tiles' queries to their rows of `out` [N, heads * dim]."""
        spec, shapes, tiling = self._spec, self._shapes, work.tiling
        keys, values = self._store.layer(layer)
        window = spec.sliding_window if spec.window_layers[layer] else None
        common = {
            "HEAD_DIM": spec.head_dim,
            "DIM": shapes.padded_dim,
            "WINDOW": window or 0,
            "SPLIT_PAGES": work.split_pages,
        }
        attend_pages[(len(work.tiles), spec.num_kv_heads, work.splits)](
            queries,
            keys,
            values,
            self._rotations,
            pages,
            work.tiles,
            work.parts if work.split_pages else out,
            work.weights,
            queries.stride(0),
            keys.stride(0),
            keys.stride(1),
            self._scale,
            GROUP=shapes.group,
            PAGE_SIZE=shapes.page_size,
            ROWS=tiling.rows,
            SLOTS=tiling.slots,
            TURN_KEYS=tiling.turn_keys,
            num_warps=tiling.warps,
            num_stages=tiling.stages,
            **common,
        )
        if work.split_pages:
            grid = (len(work.tiles), tiling.queries(shapes.group), spec.num_heads)
            merge_splits[grid](
                work.parts,
                work.weights,
                work.tiles,
                out,
                SPLITS=MERGED_SPLITS,
                num_warps=1,
                **common,
            )
