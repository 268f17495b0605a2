"""A step's page tables for flash-attn: int32, one row per sequence. Loop thread only."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.errors import Corruption
from engine.model.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPages:
    """Page tables that all layers of a step share. B sequences; int32 tensors on the device."""

    table: Tensor  # [B, most pages] blocks; behind a sequence's last page block 0, never read
    lengths: Tensor  # [B] tokens of each context
    query_starts: Tensor  # [B + 1]
    context_starts: Tensor  # [B + 1]
    most_queries: int
    longest: int  # tokens


def lay_out_pages(batch: Batch, block_size: int, device: torch.device) -> StepPages:
    """Lay out a step.

    Raises:
        Corruption: a page before a sequence's last is not full, or one is not at its position.
    """
    lengths = np.diff(batch.context_starts)
    return StepPages(
        table=torch.from_numpy(page_rows(batch, block_size)).to(device),
        lengths=_int32(lengths, device),
        query_starts=_int32(batch.query_starts, device),
        context_starts=_int32(batch.context_starts, device),
        most_queries=int(np.diff(batch.query_starts).max()),
        longest=int(lengths.max()),
    )


def fixed_pages(*, tokens: int, longest: int, block_size: int, device: torch.device) -> StepPages:
    """Pages of `tokens` sequences with one new token each, to be refilled for each step.

    `longest`: maximum pages of a sequence. A sequence without pages gets zeros.
    """
    return StepPages(
        table=torch.zeros((tokens, longest), dtype=torch.int32, device=device),
        lengths=torch.zeros(tokens, dtype=torch.int32, device=device),
        query_starts=torch.arange(tokens + 1, dtype=torch.int32, device=device),
        context_starts=torch.zeros(tokens + 1, dtype=torch.int32, device=device),
        most_queries=1,
        longest=longest * block_size,
    )


def fill_pages(pages: StepPages, batch: Batch, block_size: int) -> bool:
    """Write a batch to fixed pages. False, and nothing written: it does not fit.

    Raises:
        Corruption: as `lay_out_pages`.
    """
    rows, longest = pages.table.shape
    count = len(batch.page_starts) - 1
    if len(batch.token_ids) > count or count > rows or np.diff(batch.page_starts).max() > longest:
        return False
    table = np.zeros((rows, longest), dtype=np.int32)
    filled = page_rows(batch, block_size)
    table[:count, : filled.shape[1]] = filled
    lengths = np.zeros(rows, dtype=np.int32)
    lengths[:count] = np.diff(batch.context_starts)
    # a copy from memory that is not pinned returns after the driver has read it
    pages.table.copy_(torch.from_numpy(table))
    pages.lengths.copy_(torch.from_numpy(lengths))
    return True


def page_rows(batch: Batch, block_size: int) -> npt.NDArray[np.int32]:
    """Return the blocks [B, most pages] of each sequence's pages.

    Raises:
        Corruption: a page before a sequence's last is not full, or one is not at its position.
    """
    counts = np.diff(batch.page_starts)
    numbers = np.arange(len(batch.pages)) - np.repeat(batch.page_starts[:-1], counts)
    blocks, firsts, lasts, bases = batch.pages.T
    is_last = np.zeros(len(blocks), dtype=np.bool_)
    is_last[batch.page_starts[1:] - 1] = True
    wrong = (firsts != 0) | (bases != numbers * block_size)
    wrong |= (lasts != block_size - 1) & ~is_last
    if wrong.any():
        raise Corruption(
            f"page-table entry {batch.pages[wrong][0].tolist()} (block, first, last, base): pages "
            f"of {block_size} must be full and at their positions"
        )
    rows = np.zeros((len(counts), counts.max()), dtype=np.int32)
    rows[np.repeat(np.arange(len(counts)), counts), numbers] = blocks
    return rows


def _int32(values: npt.NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.int32)).to(device)
