"""A model ready to run, and its runner over one KV tensor. Loop thread only."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.device.cpu import CpuDevice
from engine.device.cuda import CudaDevice
from engine.device.faults import is_shortage, is_sticky
from engine.device.protocol import Device
from engine.errors import ConfigError, DeviceLostError
from engine.files.model_spec import ModelSpec
from engine.ids import BlockId
from engine.kv.page_table import PageMove
from engine.kv.step import SequenceStep
from engine.kv.tensors import KvStore, PositionForm, kv_bytes_per_block
from engine.kv.tiers.stream_mover import DeviceBlocks
from engine.model.attention.protocol import AttentionBackend, CapturableBackend
from engine.model.attention.registry import build_backend
from engine.model.batch import build_batch
from engine.model.fingerprint import fingerprint
from engine.model.graph_buckets import Bucket, graph_sizes, make_buckets
from engine.model.graphs import DecodeGraphs, graph_bytes
from engine.model.layers import Arithmetic, RotaryTable, TorchOps
from engine.model.llama import Llama
from engine.model.profiling import activation_peak
from engine.model.resolve import Resolved, dtype_name, resolve
from engine.model.sampler import sample
from engine.model.weights.load import Keeping, ModelWeights, load_weights

_log = logging.getLogger(__name__)


class LoadedModel:
    """Weights in memory, device, types and attention backend resolved; no KV pool yet.

    `kv_bytes_per_block` counts all layers, K and V. `fingerprint` names the exact weights and
    arithmetic (see engine.model.fingerprint). Types and device are names.
    """

    def __init__(  # noqa: PLR0913 -- what was resolved, from one place
        self,
        *,
        llama: Llama,
        kv_dtype: torch.dtype,
        block_size: int,
        max_model_len: int,
        fingerprint: str,
        graph_buckets: Sequence[Bucket] = (),
        attention_reason: str = "",
        position_form: PositionForm = "slot",
    ) -> None:
        self._llama = llama
        self._graph_buckets = graph_buckets
        self._kv_dtype = kv_dtype
        self._position_form = position_form
        self.spec = llama.spec
        self.device = llama.arithmetic.device.type
        self.dtype = dtype_name(llama.arithmetic.dtype)
        self.weights = "+".join(llama.weights.formats) or self.dtype
        self.kv_dtype = dtype_name(kv_dtype)
        self.attention = llama.attention.name
        self.attention_reason = attention_reason
        self.weights_bytes = llama.weights.num_bytes
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.kv_bytes_per_block = kv_bytes_per_block(llama.spec, block_size, kv_dtype)
        self.fingerprint = fingerprint

    @property
    def llama(self) -> Llama:
        """The network itself."""
        return self._llama

    def measure_activation_peak(self, max_num_batched_tokens: int, max_num_seqs: int) -> int:
        """Run worst-case steps (one layer, a pool of one block); return the peak of their bytes.

        Weights and KV are not counted. Takes about a tenth of a second for a small model.

        Raises:
            MemoryError: there is not enough memory for such a step.
        """
        with memory_errors(), torch.inference_mode():
            return activation_peak(
                self._llama,
                self._store(1),
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=max_num_seqs,
                context=self.max_model_len,
            )

    def measure_graphs(self) -> int:
        """Capture the decode graphs over a pool of one block; return the bytes that they take."""
        if not self._graph_buckets:
            return 0
        device = CudaDevice()
        with torch.inference_mode():
            return graph_bytes(self._graphs(self._store(1), device), device)

    def runner(self, num_blocks: int) -> "TorchRunner":
        """Allocate a pool of `num_blocks` blocks and return a runner over it.

        Raises:
            ConfigError: the device can't allocate the pool.
        """
        store = self._store(num_blocks)
        if self.device != "cuda":
            return TorchRunner(self._llama, store)
        device, graphs = CudaDevice(), None
        if self._graph_buckets:
            graphs = self._graphs(store, device)
            with torch.inference_mode():
                _log.info("captured %d decode graphs", graphs.capture())
        return TorchRunner(self._llama, store, device, graphs)

    def _graphs(self, store: KvStore, device: Device) -> DecodeGraphs:
        return DecodeGraphs(
            self._llama,
            store,
            device,
            buckets=self._graph_buckets,
            max_position=self.max_model_len - 1,
        )

    def _store(self, num_blocks: int) -> KvStore:
        return KvStore(
            self.spec,
            num_blocks=num_blocks,
            block_size=self.block_size,
            dtype=self._kv_dtype,
            device=self._llama.arithmetic.device,
            position_form=self._position_form,
        )


_MOVED_TOKENS = 512  # per copy: few launches, and little memory beside the pool
_CPU_SHORTAGE = "DefaultCPUAllocator"  # "... can't allocate memory: you tried to allocate ..."


class TorchRunner:
    """Implements engine.kv.step.ModelRunner.

    `device`: None for a device without streams. `graphs`: captured decode steps, if there are any.
    `move_pages` is None where K is rotated by its slot only: then edits move no KV.
    """

    def __init__(
        self,
        llama: Llama,
        store: KvStore,
        device: Device | None = None,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._llama = llama
        self.store = store
        self._device = device
        self._compute = None if device is None else device.compute
        self._graphs = graphs
        self.move_pages = self._move if store.position_form == "absolute" else None

    @property
    def streamed(self) -> DeviceBlocks | None:
        """The pool, if its device copies asynchronously."""
        if self._device is None:
            return None
        return DeviceBlocks(device=self._device, blocks=self, rows=self.store.bytes)

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        """See engine.kv.step.ModelRunner.

        Raises:
            MemoryError: there is not enough memory for the step.
            DeviceLostError: the CUDA context is broken.
            Corruption: a page table contradicts itself or the step.
        """
        wanted = [at for step in batch for at in step.samples]
        with lost_device(), memory_errors():
            logits = self.logits(batch)
            with torch.inference_mode():
                drawn = sample(logits, wanted) if wanted else []
            if self._compute is not None:
                # A step without samples reads nothing back. Without this call its time and its
                # errors would count as the next step's.
                self._compute.synchronize()
            return drawn

    def logits(self, batch: Sequence[SequenceStep], *, every_token: bool = False) -> Tensor:
        """As `execute`, but return logits and sample nothing.

        Returns:
            [samples, vocab], or with `every_token` [new tokens, vocab].
        """
        built = build_batch(batch, self.store)
        if every_token:
            built = replace(built, sampled=np.arange(len(built.token_ids)))
        with torch.inference_mode():
            logits = None if self._graphs is None or every_token else self._graphs.run(built)
            return self._llama.forward(built, self.store) if logits is None else logits

    def captured(self, batch: Sequence[SequenceStep]) -> Callable[[], Tensor] | None:
        """Return a replay of a step's graph, which computes its logits; None: no graph fits it.

        For measurements. Call it in inference mode, before any other step.
        """
        if self._graphs is None:
            return None
        with torch.inference_mode():
            return self._graphs.prepare(build_batch(batch, self.store))

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        """See engine.kv.step.ModelRunner."""
        with torch.inference_mode():
            self.store.copy_block(source, target)

    def _move(self, moves: Sequence[PageMove]) -> None:
        """See engine.kv.page_table.MovePages. Moves fewer pages at a time when memory is short.

        Raises:
            MemoryError: there is not enough memory to move a single page.
        """
        left, at_once = list(moves), max(1, _MOVED_TOKENS // self.store.block_size)
        while left:
            chunk = left[:at_once]
            try:
                with lost_device(), memory_errors(), torch.inference_mode():
                    tokens = self._rotated(chunk)
            except MemoryError:
                if len(chunk) == 1:
                    raise
                at_once = len(chunk) // 2
                continue
            with torch.inference_mode():
                places = [
                    (move.target, slot) for move in chunk for slot in range(len(move.sources))
                ]
                self.store.put(places, tokens)
            del left[: len(chunk)]

    def _rotated(self, moves: Sequence[PageMove]) -> Tensor:
        """Copy out KV [n, layers, 2, kv_heads, head_dim], rotated to its new positions."""
        arithmetic = self._llama.arithmetic
        shifts = np.array([by for move in moves for by in move.shifts], dtype=np.int64)
        tokens = self.store.take([place for move in moves for place in move.sources])
        turn = arithmetic.table.back(-shifts)[:, None, None]
        tokens[:, :, 0] = arithmetic.ops.rotate(tokens[:, :, 0], turn)
        return tokens

    def read_block(self, block: int, into: npt.NDArray[np.uint8]) -> None:
        """See engine.kv.tiers.store.Blocks."""
        self.store.read_block(block, into)

    def write_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        """See engine.kv.tiers.store.Blocks."""
        self.store.write_block(block, data)

    def zero_block(self, block: BlockId) -> None:
        """See engine.kv.step.ModelRunner."""
        with torch.inference_mode():
            self.store.zero_block(block)


@contextlib.contextmanager
def lost_device() -> Iterator[None]:
    """Raise `DeviceLostError` for errors that leave the CUDA context broken."""
    try:
        yield
    except RuntimeError as error:
        if is_sticky(error):
            raise DeviceLostError(f"the CUDA device is lost to this process: {error}") from error
        raise


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Raise `MemoryError` for torch's various out-of-memory errors, and free its cache.

    On a CPU torch raises a RuntimeError that only its message tells apart.
    """
    try:
        yield
    except RuntimeError as error:
        is_known = isinstance(error, torch.OutOfMemoryError) or is_shortage(error)
        if not is_known and _CPU_SHORTAGE not in str(error):
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        raise MemoryError(str(error)) from error


def prepare_model(
    spec: ModelSpec, config: EngineConfig, *, why_not_native: str = ""
) -> LoadedModel:
    """Load the weights and resolve device, types and attention backend.

    `why_not_native`: why the native kernels can't run the model, if they were tried first.

    Raises:
        ModelFileError: a tensor is missing, has the wrong shape or an unknown type.
        ConfigError: the device or the attention backend is missing or not supported, or
            `max_model_len` exceeds the model's limit.
        MemoryError: the weights don't fit.
    """
    if config.cpu_threads:
        torch.set_num_threads(config.cpu_threads)
    resolved = resolve(spec, config, why_not_native=why_not_native)
    # positions keep their precision in 16-bit models: angles and rotations are float32
    table = RotaryTable(spec.rope, spec.head_dim, dtype=torch.float32, device=resolved.device)
    arithmetic = Arithmetic(
        ops=TorchOps(), table=table, dtype=resolved.dtype, device=resolved.device
    )
    attention = build_backend(resolved.attention.declaration, spec, arithmetic)
    with memory_errors():
        weights = _weights(spec, config, resolved)
    return LoadedModel(
        llama=Llama(spec, weights, attention, arithmetic),
        graph_buckets=buckets_for(config, resolved, attention),
        kv_dtype=resolved.kv_dtype,
        block_size=config.block_size,
        max_model_len=resolved.max_model_len,
        fingerprint=fingerprint(
            spec,
            dtype_name(resolved.dtype),
            dtype_name(resolved.kv_dtype),
            resolved.attention.declaration.name,
        ),
        attention_reason=resolved.attention.reason,
        position_form=resolved.attention.declaration.position_form,
    )


def buckets_for(
    config: EngineConfig, resolved: Resolved, attention: AttentionBackend
) -> tuple[Bucket, ...]:
    """Sizes of the captured steps: none unless the device and the attention backend support it."""
    if config.cuda_graphs == "off" or resolved.device.type != "cuda":
        return ()
    if config.weights_offload_layers:
        _log.info("no CUDA graphs: offloaded layers are copied to the device during a step")
        return ()
    if not isinstance(attention, CapturableBackend):
        _log.info("no CUDA graphs: %s attention has variable shapes", attention.name)
        return ()
    return make_buckets(
        graph_sizes(config.cuda_graph_sizes, config.max_num_seqs),
        max_model_len=resolved.max_model_len,
        block_size=config.block_size,
    )


def _weights(spec: ModelSpec, config: EngineConfig, resolved: Resolved) -> ModelWeights:
    """Load the weights in the configured formats and places."""
    offloaded = config.weights_offload_layers
    copier: Device | None = None
    if offloaded:
        copier = CudaDevice() if resolved.device.type == "cuda" else CpuDevice()
    keeping = Keeping(
        dtype=resolved.dtype,
        device=resolved.device,
        quantized=config.weights == "native",
        offloaded=offloaded,
        copier=copier,
    )
    try:
        return load_weights(spec, keeping)
    except MemoryError as error:
        if not offloaded:
            raise
        allowed = f"a number whose layers fit the device and pinned main memory ({error})"
        raise ConfigError("weights_offload_layers", offloaded, allowed) from error
