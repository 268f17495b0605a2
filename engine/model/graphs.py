"""Decode as captured CUDA graphs: one launch per step. Loop thread only.

A graph reads and writes fixed addresses. Each graph therefore owns input buffers to which a step is
copied. Padding rows write their KV to an unused block, and their results are ignored.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.device.protocol import Device, DeviceEvent, Graph
from engine.errors import ConfigError
from engine.kv.tensors import KvStore
from engine.model.attention.protocol import CapturableBackend, FixedAttentionStep
from engine.model.batch import Batch
from engine.model.graph_buckets import Bucket, choose_bucket
from engine.model.llama import FixedInputs, Llama

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captured:
    """A graph, the tensors that it reads, and pinned memory [4, rows] for its inputs."""

    graph: Graph
    attention: FixedAttentionStep
    inputs: FixedInputs
    staged: Tensor


class DecodeGraphs:
    """Graphs of a model over one KV store, by bucket.

    `max_position`: largest position of any token.

    Raises:
        TypeError: the model's attention backend can't be captured.
    """

    def __init__(
        self,
        llama: Llama,
        store: KvStore,
        device: Device,
        *,
        buckets: Sequence[Bucket],
        max_position: int,
    ) -> None:
        if not isinstance(llama.attention, CapturableBackend):
            raise TypeError(f"{llama.attention.name} attention has no step with fixed tensors")
        self._llama = llama
        self._rotations = llama.arithmetic.table
        self._attention = llama.attention
        self._store = store
        self._device = device
        self._max_position = max_position
        self._buckets = list(buckets)
        self._captured: dict[Bucket, _Captured] = {}
        self._copied: DeviceEvent | None = None

    def capture(self) -> int:
        """Capture all graphs and return their number. The widest is first: others reuse its memory.

        A graph that does not fit in memory is skipped; its steps run without a graph.

        Raises:
            ConfigError: an operation of the step can't be captured.
        """
        for bucket in sorted(self._buckets, key=lambda one: (-one.rows, -one.longest)):
            try:
                self._captured[bucket] = self._capture(bucket)
            except (MemoryError, torch.OutOfMemoryError) as error:
                self._device.release_cached()
                _log.warning("no graph of %d rows: %s", bucket.rows, error)
            except RuntimeError as error:
                allowed = f"off, as a step cannot be captured here: {error}"
                raise ConfigError("cuda_graphs", "auto", allowed) from error
        self._buckets = list(self._captured)
        return len(self._captured)

    def run(self, batch: Batch) -> Tensor | None:
        """Compute a step; return logits [S, vocab] as `Llama.forward`. None: no graph fits it.

        Graphs compute decode steps only: those that sample at each new token.
        """
        replay = self.prepare(batch)
        return None if replay is None else replay()

    def prepare(self, batch: Batch) -> Callable[[], Tensor] | None:
        """Copy a step to the device; return the function that computes it, as `run` does."""
        rows = len(batch.token_ids)
        if len(batch.sampled) != rows:
            return None
        counts = np.diff(batch.page_starts)
        bucket = choose_bucket(
            self._buckets, rows=rows, pages=int(counts.sum()), longest=int(counts.max())
        )
        if bucket is None:
            return None
        captured = self._captured[bucket]
        if not captured.attention.fill(batch):
            return None
        self._fill(captured, batch)

        def replay() -> Tensor:
            captured.graph.replay()
            return captured.graph.output[:rows]

        return replay

    def _fill(self, captured: _Captured, batch: Batch) -> None:
        if self._copied is not None:
            self._copied.synchronize()  # the previous step's inputs have been copied
        staged: npt.NDArray[np.int64] = captured.staged.numpy()
        rows = len(batch.token_ids)
        staged[:, :rows] = batch.token_ids, batch.positions, batch.slots, batch.write_rows
        staged[:3, rows:] = 0
        staged[3, rows:] = self._store.spare_row
        compute = self._device.compute
        compute.copy(captured.inputs.table, captured.staged)
        self._copied = compute.record()

    def _capture(self, bucket: Bucket) -> _Captured:
        device, rows = self._device, bucket.rows
        attention = self._attention.fixed_step(
            self._store,
            tokens=rows,
            pages=bucket.pages,
            longest=bucket.longest,
            max_position=self._max_position,
        )
        table = torch.zeros((4, rows), dtype=torch.int64, device=self._store.device)
        table[3] = self._store.spare_row
        # the table may grow into another tensor; the graph keeps reading this one
        lines = self._rotations.from_zero(self._max_position)
        inputs = FixedInputs(table=table, lines=lines)
        graph = device.capture(lambda: self._llama.forward_fixed(inputs, attention, self._store))
        staged = device.pinned(table.nbytes).view(torch.int64).view(4, rows)
        return _Captured(graph=graph, attention=attention, inputs=inputs, staged=staged)


def graph_bytes(graphs: DecodeGraphs, device: Device) -> int:
    """Capture graphs; return by how much this lowers the driver's free memory."""
    device.release_cached()
    before = device.memory().free
    graphs.capture()
    device.release_cached()
    return max(0, before - device.memory().free)
