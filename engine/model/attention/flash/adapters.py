"""One call for three versions of flash-attn. Loop thread only.

K and V are the pool's pages of a layer [blocks, block, kv_heads, head_dim], as strided views. No
version copies them: the last dimension is contiguous, and all strides are multiples of 16 bytes.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from engine.model.attention.declaration import Declaration
from engine.model.attention.flash.declaration import (
    VERSION_2,
    VERSION_3,
    VERSION_4_ON_HOPPER,
)
from engine.model.attention.flash.pages import StepPages

Window: TypeAlias = tuple[int, int]  # tokens seen before and after a query; (-1, -1): all

# number of parts that a long context is split into, to be merged afterwards
WHOLE = 1
AUTOMATIC = 0  # the library decides, by the free processors of the device


class Adapter(Protocol):
    """Causal attention over pages."""

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, pages: StepPages, window: Window
    ) -> Tensor:
        """Attend each sequence's last tokens, which are the queries, over its context.

        Args:
            queries: [N, heads, head_dim], sequence after sequence.
            keys: pages of K, rotated by its position.
            values: pages of V; unused slots must be finite.
            pages: the pages of the contexts.
            window: how far a query sees.

        Returns:
            [N, heads, head_dim].
        """
        ...


class Version2:
    """flash-attn 2.8. With one query each `num_splits` counts; other steps are never split."""

    def __init__(self, library: ModuleType, num_splits: int) -> None:
        self._of_one: Callable[..., Tensor] = library.flash_attn_with_kvcache
        self._of_many: Callable[..., Tensor] = library.flash_attn_varlen_func
        self._num_splits = num_splits

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, pages: StepPages, window: Window
    ) -> Tensor:
        """See Adapter."""
        if pages.most_queries == 1:
            return self._of_one(
                queries[:, None],
                keys,
                values,
                cache_seqlens=pages.lengths,
                block_table=pages.table,
                causal=True,
                window_size=window,
                num_splits=self._num_splits,
            )[:, 0]
        # with a block table the library reads only the lengths from the starts
        return self._of_many(
            queries,
            keys,
            values,
            pages.query_starts,
            pages.context_starts,
            pages.most_queries,
            pages.longest,
            causal=True,
            window_size=window,
            block_table=pages.table,
        )


class Version3:
    """flash-attn 3, on Hopper."""

    def __init__(self, library: ModuleType, num_splits: int) -> None:
        self._attend: Callable[..., Tensor] = library.flash_attn_with_kvcache
        self._num_splits = num_splits

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, pages: StepPages, window: Window
    ) -> Tensor:
        """See Adapter."""
        return self._attend(
            queries,
            keys,
            values,
            cache_seqlens=pages.lengths,
            page_table=pages.table,
            cu_seqlens_q=pages.query_starts,
            max_seqlen_q=pages.most_queries,
            causal=True,
            window_size=window,
            num_splits=self._num_splits,
        )


class Version4:
    """flash-attn 4. Its kernel for Hopper asserts that no context is split."""

    def __init__(self, library: ModuleType, num_splits: int) -> None:
        self._attend: Callable[..., Any] = library.flash_attn_varlen_func
        self._num_splits = num_splits

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, pages: StepPages, window: Window
    ) -> Tensor:
        """See Adapter."""
        attended, _ = self._attend(
            queries,
            keys,
            values,
            cu_seqlens_q=pages.query_starts,
            seqused_k=pages.lengths,
            page_table=pages.table,
            max_seqlen_q=pages.most_queries,
            max_seqlen_k=pages.longest,
            causal=True,
            window_size=window,
            num_splits=self._num_splits,
        )
        result: Tensor = attended
        return result


def make_adapter(declaration: Declaration, library: ModuleType) -> Adapter:
    """Return the adapter of a declaration's version."""
    if declaration == VERSION_2:
        return Version2(library, AUTOMATIC)
    if declaration == VERSION_3:
        return Version3(library, AUTOMATIC)
    return Version4(library, WHOLE if declaration == VERSION_4_ON_HOPPER else AUTOMATIC)
