"""Prepared steps: one with its own tables, and one with fixed tensors for a CUDA graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.model.attention.triton.launch import Launcher, LaunchWork
from engine.model.attention.triton.tables import Tiles, decoding, page_rows
from engine.model.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonStep:
    """Implements AttentionStep."""

    launcher: Launcher
    pages: Tensor  # int32 [E, 5]
    works: Sequence[LaunchWork]

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """See AttentionStep."""
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        for work in self.works:
            self.launcher.attend(layer, queries, self.pages, work, out)
        return out.flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStep:
    """Decode in a graph: `attend` reads tensors at fixed addresses, `fill` writes them.

    Implements AttentionStep for a fixed number of rows of queries. Rows beyond those of the batch
    get zeros.
    """

    step: TritonStep
    cut: Callable[[Batch], Tiles]
    max_position: int

    @property
    def tables(self) -> Sequence[Tensor]:
        """The int32 tensors that `fill` writes: pages [E, 5] and tiles [T, 8]."""
        return self.step.pages, self.step.works[0].tiles

    def fill(self, batch: Batch) -> bool:
        """Write a batch's tables, in the current stream.

        Returns:
            False, with nothing written, if it does not fit, or a sequence is not decoded
            (engine.model.attention.triton.tiling.MAX_DECODE_TOKENS).
        """
        pages, tiles = self.tables
        tokens = len(batch.token_ids)
        if tokens > len(tiles) or len(batch.pages) > len(pages) or not decoding(batch).all():
            return False
        cut = self.cut(batch)
        if not self._has_room(cut) or batch.positions.max() > self.max_position:
            return False
        rows = np.zeros(tuple(tiles.shape), dtype=np.int32)
        rows[: len(cut.rows)] = cut.rows
        # a padding row is a query without pages, whose result is zero
        idle = rows[len(cut.rows) :][: len(tiles) - tokens]
        idle[:, 0] = np.arange(tokens, len(tiles))
        idle[:, 1] = 1
        tiles.copy_(torch.from_numpy(rows))
        pages[: len(batch.pages)].copy_(torch.from_numpy(page_rows(batch)))
        return True

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """See AttentionStep."""
        return self.step.attend(layer, queries)

    def _has_room(self, cut: Tiles) -> bool:
        work = self.step.works[0]
        if cut.splits > work.splits:
            return False
        return work.splits == 1 or cut.parts <= len(work.parts)
