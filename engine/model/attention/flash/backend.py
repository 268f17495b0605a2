"""Attention by flash-attn over pages of the pool. Loop thread only.

Needs K at its position and pages without holes: see engine.kv.partition and engine.kv.edits.
"""

from dataclasses import dataclass
from importlib import import_module

from torch import Tensor

from engine.files.model_spec import ModelSpec
from engine.kv.tensors import KvStore
from engine.model.attention.declaration import Declaration
from engine.model.attention.flash.adapters import Adapter, Window, make_adapter
from engine.model.attention.flash.library import find_library
from engine.model.attention.flash.pages import (
    StepPages,
    fill_pages,
    fixed_pages,
    lay_out_pages,
)
from engine.model.batch import Batch
from engine.model.layers import Arithmetic

_EVERYTHING: Window = (-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashStep:
    """A prepared step; implements AttentionStep."""

    adapter: Adapter
    store: KvStore
    pages: StepPages
    windows: tuple[Window, ...]  # of each layer

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """See AttentionStep."""
        keys, values = self.store.layer(layer)
        attended = self.adapter.attend(queries, keys, values, self.pages, self.windows[layer])
        return attended.flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedFlashStep(FlashStep):
    """Decode in a graph; implements FixedAttentionStep."""

    def fill(self, batch: Batch) -> bool:
        """See FixedAttentionStep."""
        return fill_pages(self.pages, batch, self.store.block_size)


class FlashAttention:
    """See AttentionBackend and CapturableBackend."""

    name = "flash"

    def __init__(self, spec: ModelSpec, adapter: Adapter) -> None:
        self._adapter = adapter
        size = spec.sliding_window
        # a window of n tokens contains the query itself and n - 1 before it
        window = _EVERYTHING if size is None else (size - 1, 0)
        self._windows = tuple(window if has else _EVERYTHING for has in spec.window_layers)

    def prepare(self, batch: Batch, store: KvStore) -> FlashStep:
        """See AttentionBackend.

        Raises:
            Corruption: a page before a sequence's last is not full, or is at a wrong position.
        """
        return FlashStep(
            adapter=self._adapter,
            store=store,
            pages=lay_out_pages(batch, store.block_size, store.device),
            windows=self._windows,
        )

    def fixed_step(
        self, store: KvStore, *, tokens: int, pages: int, longest: int, max_position: int
    ) -> FixedFlashStep:
        """See CapturableBackend."""
        del pages, max_position  # the table has a row of the same length for each sequence
        return FixedFlashStep(
            adapter=self._adapter,
            store=store,
            pages=fixed_pages(
                tokens=tokens, longest=longest, block_size=store.block_size, device=store.device
            ),
            windows=self._windows,
        )


def build(spec: ModelSpec, arithmetic: Arithmetic, declaration: Declaration) -> FlashAttention:
    """See engine.model.attention.registry.BackendModule.

    Raises:
        ConfigError: flash-attn is installed, but can't be imported here.
    """
    del arithmetic  # queries and K are rotated already
    return FlashAttention(spec, make_adapter(declaration, find_library(declaration, import_module)))
