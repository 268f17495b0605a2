"""The `triton` backend. Loop thread only. Imported only when it was chosen."""

from subprocess import CalledProcessError

import numpy as np
import torch

from engine.errors import ConfigError
from engine.files.model_spec import ModelSpec
from engine.kv.tensors import KvStore
from engine.model.attention.declaration import Declaration
from engine.model.attention.triton.tables import (
    PAGE_COLUMNS,
    TILE,
    Tiles,
    decoding,
    page_rows,
    tiles_of,
)
from engine.model.attention.triton.tiling import Shapes, Tiling, decode_tiling, prefill_tiling
from engine.model.batch import Batch, Ints
from engine.model.layers import Arithmetic

try:
    from engine.model.attention.triton.launch import Launcher, shared_bytes
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "triton":
        raise
    raise ConfigError(
        "attention_backend", "triton", "torch, or triton once its package is installed"
    ) from error

from engine.model.attention.triton.steps import FixedStep, TritonStep


def build(spec: ModelSpec, arithmetic: Arithmetic, declaration: Declaration) -> "TritonAttention":
    """See engine.model.attention.registry.BackendModule.

    Raises:
        ConfigError: Triton can't use the device here; usually it finds no C compiler.
    """
    try:
        return TritonAttention(spec, arithmetic, name=declaration.name)
    except (RuntimeError, OSError, CalledProcessError) as error:
        allowed = (
            "torch, or triton once there are a C compiler (gcc, or what CC names), Python's "
            f"headers and a folder for its cache (TRITON_CACHE_DIR): {error}"
        )
        raise ConfigError("attention_backend", declaration.name, allowed) from error


class TritonAttention:
    """Implements AttentionBackend by the kernels of `kernels.py`."""

    def __init__(self, spec: ModelSpec, arithmetic: Arithmetic, *, name: str = "triton") -> None:
        self.name = name
        self._spec = spec
        self._arithmetic = arithmetic
        self._rotations = arithmetic.table
        self._shared_bytes = shared_bytes(arithmetic.device)
        self._is_warm = arithmetic.device.type != "cuda"  # interpreted kernels are not compiled

    def prepare(self, batch: Batch, store: KvStore) -> "TritonStep":
        """See AttentionBackend. The first call compiles, which takes seconds."""
        if not self._is_warm:
            self.warm_up(store)
            self._is_warm = True
        shapes = self._shapes(store)
        launcher = self._launcher(store, shapes, int(batch.pages[:, 3].max()))
        few = decoding(batch)
        kinds = ((few, decode_tiling(shapes)), (~few, prefill_tiling(shapes)))
        return TritonStep(
            launcher=launcher,
            pages=torch.from_numpy(page_rows(batch)).to(store.device),
            works=[
                launcher.work(self._tiles(batch, np.flatnonzero(members), tiling), tiling)
                for members, tiling in kinds
                if members.any()
            ],
        )

    def fixed_step(
        self, store: KvStore, *, tokens: int, pages: int, longest: int, max_position: int
    ) -> "FixedStep":
        """Return a step with tensors at fixed addresses, for a CUDA graph of decode.

        Args:
            store: the KV that it reads.
            tokens: number of rows of queries.
            pages: maximum of the page-table entries of all sequences together.
            longest: maximum entries of one sequence; it sets the grid of the launches.
            max_position: largest position of any token.
        """
        shapes = self._shapes(store)
        tiling = decode_tiling(shapes)
        launcher = self._launcher(store, shapes, max_position)
        room = Tiles(
            rows=np.zeros((tokens, len(TILE)), dtype=np.int32),
            parts=tokens + pages // tiling.split_pages,
            splits=-(-longest // tiling.split_pages),
        )
        return FixedStep(
            step=TritonStep(
                launcher=launcher,
                pages=torch.zeros((pages, PAGE_COLUMNS), dtype=torch.int32, device=store.device),
                works=[launcher.work(room, tiling)],
            ),
            cut=lambda batch: self._tiles(batch, np.arange(len(batch.page_starts) - 1), tiling),
            max_position=max_position,
        )

    def warm_up(self, store: KvStore) -> None:
        """Launch each variant that a step may need, on a tile without queries and pages.

        This way none is compiled while a turn waits for a token.
        """
        spec, shapes, device = self._spec, self._shapes(store), store.device
        launcher = self._launcher(store, shapes, 0)
        pages = torch.zeros((1, PAGE_COLUMNS), dtype=torch.int32, device=device)
        shape = (1, spec.num_heads, spec.head_dim)
        queries = torch.zeros(shape, dtype=self._arithmetic.dtype, device=device)
        tile = np.zeros((1, len(TILE)), dtype=np.int32)
        kinds = (
            (1, decode_tiling(shapes)),
            (2, decode_tiling(shapes)),
            (1, prefill_tiling(shapes)),
        )
        for splits, tiling in kinds:
            work = launcher.work(Tiles(rows=tile, parts=1, splits=splits), tiling)
            for windowed in set(spec.window_layers):
                layer = spec.window_layers.index(windowed)
                launcher.attend(layer, queries, pages, work, torch.zeros_like(queries))

    def _shapes(self, store: KvStore) -> Shapes:
        spec = self._spec
        return Shapes(
            group=spec.num_heads // spec.num_kv_heads,
            head_dim=spec.head_dim,
            page_size=store.block_size,
            itemsize=self._arithmetic.dtype.itemsize,
            shared_bytes=self._shared_bytes,
        )

    def _launcher(self, store: KvStore, shapes: Shapes, max_position: int) -> Launcher:
        rotations = self._rotations.from_zero(max_position)
        return Launcher(spec=self._spec, store=store, shapes=shapes, rotations=rotations)

    def _tiles(self, batch: Batch, members: Ints, tiling: Tiling) -> Tiles:
        return tiles_of(
            batch,
            members,
            queries_per_tile=tiling.queries(self._spec.num_heads // self._spec.num_kv_heads),
            split_pages=tiling.split_pages,
            window=self._spec.sliding_window,
        )
