"""A model on the native kernels, and its runner over one KV pool. Loop thread only. No torch."""

import ctypes
import weakref
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.files.model_spec import ModelSpec
from engine.ids import BlockId
from engine.kv.step import NOT_FINITE, SequenceStep
from engine.model.attention.declaration import choose_attention
from engine.model.attention.native import native_candidate
from engine.model.fingerprint import fingerprint
from engine.model.kernels.library import (
    PHASES,
    Effort,
    Format,
    Memory,
    Model,
    address_of,
    aligned_zeros,
    choose_isa,
    load_library,
)
from engine.model.native_step import StepBuffers, raise_refusal
from engine.model.native_weights import NativeWeights, has_quantized, load_native_weights
from engine.model.sampler import draw
from engine.planning.native_sizes import (
    BLOCK_TOKENS,
    native_activation_bytes,
    native_kv_bytes_per_block,
    why_not_native,
)
from engine.system.limits import usable_processors
from engine.system.process_memory import keep_out_of_dumps

_ROTATION_CHUNK = 2048  # positions

_WINDOW_S = 0.02  # several time slices of the scheduler
_SHORTEST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.6  # between trials of one more thread; a trial costs about a window


class NativeModel:
    """Packed weights in memory and an instruction set; no KV pool yet.

    Has the interface of engine.model.runner.LoadedModel. `dtype` is the type of the inputs of
    linear layers: int8 with a scale per group of 32 for quantised weights, else bfloat16. Sums are
    float32.
    """

    device = "cpu"
    block_size = BLOCK_TOKENS

    def __init__(  # noqa: PLR0913 -- what was resolved, from one place
        self,
        spec: ModelSpec,
        library: ctypes.CDLL,
        weights: NativeWeights,
        *,
        isa: str,
        kv_dtype: str,
        threads: int,
        max_model_len: int,
        attention_reason: str,
    ) -> None:
        self.spec = spec
        self.isa = isa
        self.kv_dtype = kv_dtype
        self.threads = threads
        self.max_model_len = max_model_len
        self.attention = f"native-{isa}"
        self.attention_reason = attention_reason
        self.formats = weights.formats
        is_bfloat = weights.formats == (Format.BF16.name,)
        self.weights = "bfloat16" if is_bfloat else "+".join(weights.formats)
        self.dtype = "bfloat16" if is_bfloat else "int8"
        self.weights_bytes = weights.num_bytes
        self.kv_bytes_per_block = native_kv_bytes_per_block(spec, kv_dtype)
        self.fingerprint = fingerprint(spec, self.attention, kv_dtype, *weights.formats)
        self._library = library
        self._weights = weights

    def measure_graphs(self) -> int:
        """Return the bytes of captured steps: 0, since there are none."""
        return 0

    def measure_activation_peak(self, max_num_batched_tokens: int, max_num_seqs: int) -> int:
        """Return the bytes that the largest step holds beyond weights and KV (see buffers.c)."""
        return native_activation_bytes(self.spec, max_num_batched_tokens, max_num_seqs)

    def runner(self, num_blocks: int) -> "NativeRunner":
        """Allocate a pool of `num_blocks` blocks and return a runner over it.

        Raises:
            ConfigError: the machine can't allocate the pool.
        """
        size = num_blocks * self.kv_bytes_per_block
        try:
            pool = Memory(self._library, size)
        except MemoryError as error:
            raise ConfigError(
                "kv_cache_memory", size, "a size that the machine can allocate"
            ) from error
        keep_out_of_dumps(pool.bytes.ctypes.data, size)
        return NativeRunner(self, self._library, self._weights, pool, num_blocks)


class NativeRunner:
    """Implements engine.kv.step.ModelRunner.

    `streamed` is None: threads copy blocks of its pool. `move_pages` is None: KV holds no position.
    """

    streamed = None
    move_pages = None

    def __init__(
        self,
        model: NativeModel,
        library: ctypes.CDLL,
        weights: NativeWeights,
        pool: Memory,
        num_blocks: int,
    ) -> None:
        self.pool = pool.bytes.reshape(-1)[: num_blocks * model.kv_bytes_per_block].reshape(
            num_blocks, model.kv_bytes_per_block
        )  # [blocks, bytes]; a block is one run of bytes
        self._spec = model.spec
        self._library = library
        self._kept_alive = (weights, pool)
        self._buffers = StepBuffers(model.spec.vocab_size)
        self._thread_count = ThreadCountController(model.threads)
        self._effort = Effort()
        self._rotation = rotation_table(model.spec, _ROTATION_CHUNK)
        structure = Model.from_buffer_copy(weights.model)
        structure.pool = pool.address
        structure.block_bytes = model.kv_bytes_per_block
        structure.num_blocks = num_blocks
        structure.rotation = address_of(self._rotation)
        structure.rotation_rows = len(self._rotation)
        structure.kv_is_float = model.kv_dtype == "float32"
        structure.kv_is_int8 = model.kv_dtype == "int8"
        self._engine = library.engine_new(structure, model.isa.encode(), model.threads)
        if not self._engine:
            raise MemoryError
        self._finalizer = weakref.finalize(self, library.engine_free, self._engine)

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        """See engine.kv.step.ModelRunner.

        Raises:
            Corruption: a page table contradicts itself or the step.
        """
        self._run(batch, every_token=False)
        outputs = self._buffers.step.outputs
        tokens: list[int] = self._buffers.choices[:outputs].tolist()
        first = 0
        for one in batch:
            if one.sample is not None:
                sampling = one.sample.sampling
                if sampling.temperature or one.sample.counts or sampling.logit_bias:
                    self._draw(one, tokens, first)  # otherwise the kernel has taken the highest
                first += one.sample.drafts + 1
        return tokens

    def logits(
        self, batch: Sequence[SequenceStep], *, every_token: bool = False
    ) -> npt.NDArray[np.float32]:
        """As `execute`, but return logits and sample nothing.

        Returns:
            [samples, vocab], or with `every_token` [new tokens, vocab].
        """
        self._run(batch, every_token=every_token)
        rows = self._buffers.logits[: self._buffers.step.outputs]
        return rows[:, : self._spec.vocab_size].copy()

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        """See engine.kv.step.ModelRunner."""
        self.pool[target] = self.pool[source]

    def read_block(self, block: int, into: npt.NDArray[np.uint8]) -> None:
        """See engine.kv.tiers.store.Blocks."""
        into[:] = self.pool[block]

    def write_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        """See engine.kv.tiers.store.Blocks."""
        self.pool[block] = data

    def zero_block(self, block: BlockId) -> None:
        """See engine.kv.step.ModelRunner."""
        self.pool[block] = 0

    def profile(self) -> dict[str, float]:
        """Return seconds per phase of the step since the last call."""
        seconds = np.zeros(len(PHASES))
        self._library.engine_profile(self._engine, address_of(seconds))
        return dict(zip(PHASES, seconds.tolist(), strict=True))

    def _draw(self, one: SequenceStep, tokens: list[int], first: int) -> None:
        """Replace the greedy tokens of one sequence by samples, up to the first rejected draft."""
        for row, (at, draft) in enumerate(zip_longest(one.samples, one.drafts), first):
            if tokens[row] != NOT_FINITE:
                scores = self._buffers.logits[row, : self._spec.vocab_size]
                tokens[row] = draw(scores.astype(np.float64), at)
            if tokens[row] != draft:
                return

    def _run(self, batch: Sequence[SequenceStep], *, every_token: bool) -> None:
        buffers = self._buffers
        buffers.fill(batch, every_token=every_token)
        if buffers.end_position + BLOCK_TOKENS > len(self._rotation):
            self._grow_rotation(buffers.end_position + BLOCK_TOKENS)
        self._library.engine_set_threads(self._engine, self._thread_count.threads)
        if outcome := self._library.engine_step(self._engine, buffers.step):
            raise_refusal(outcome)
        effort = self._effort
        self._library.engine_effort(self._engine, effort)
        self._thread_count.note(wall_s=effort.wall, cpu_s=effort.cpu, waiting_s=effort.waiting)

    def _grow_rotation(self, rows: int) -> None:
        larger = rotation_table(self._spec, -(-rows // _ROTATION_CHUNK) * _ROTATION_CHUNK)
        self._library.engine_set_rotation(self._engine, address_of(larger), len(larger))
        self._rotation = larger


class ThreadCountController:
    """Chooses the thread count of the next step from the timings of the last ones.

    The threads of a step pass hundreds of barriers, and each barrier waits for the last thread.
    When another process shares a core, all threads wait for the descheduled one, and fewer threads
    are faster.

    Args:
        most: initial and maximum number of threads.
    """

    def __init__(self, most: int) -> None:
        self.threads = most
        self._most = most
        self._pause_s = _SHORTEST_PAUSE_S
        self._since_change_s = 0.0
        self._wall_s = self._cpu_s = self._waiting_s = 0.0  # of the window

    def note(self, *, wall_s: float, cpu_s: float, waiting_s: float) -> None:
        """Record one step.

        Args:
            wall_s: its wall time.
            cpu_s: CPU time of its threads together.
            waiting_s: the part of `cpu_s` spent waiting for late threads.
        """
        self._since_change_s += wall_s
        self._wall_s += wall_s
        self._cpu_s += cpu_s
        self._waiting_s += waiting_s
        if self._wall_s < _WINDOW_S:
            return
        if self.threads > 1 and not self._pays():
            self._change(self.threads - 1)
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        elif self.threads < self._most and self._since_change_s >= self._pause_s:
            self._change(self.threads + 1)  # a trial: its core may be free again
        elif self.threads == self._most:
            self._pause_s = max(self._pause_s / 2, _SHORTEST_PAUSE_S)
        self._wall_s = self._cpu_s = self._waiting_s = 0.0

    def _pays(self) -> bool:
        """Whether the last thread contributes at least half of what it would on a free core.

        Without it the other threads would get the same CPU time, but at most one core each.
        """
        work_s = self._cpu_s - self._waiting_s
        given_s = min(self._cpu_s, (self.threads - 1) * self._wall_s)
        return work_s >= given_s * (1 + 0.5 / self.threads)

    def _change(self, threads: int) -> None:
        self.threads = threads
        self._since_change_s = 0.0


def rotation_table(spec: ModelSpec, rows: int) -> npt.NDArray[np.float32]:
    """Return [rows, head_dim]: for each position the cosines, then the sines, of its angles.

    Frequencies are float32, as in transformers; angles and functions are float64.
    """
    exponents = np.arange(0, spec.head_dim, 2, dtype=np.float64) / spec.head_dim
    frequencies = (1.0 / spec.rope.theta**exponents).astype(np.float32)
    if spec.rope.frequency_divisors is not None:
        frequencies /= np.array(spec.rope.frequency_divisors, dtype=np.float32)
    angles = np.outer(np.arange(rows), frequencies.astype(np.float64))
    table = aligned_zeros(np.float32, rows, spec.head_dim)
    table[...] = np.concatenate((np.cos(angles), np.sin(angles)), axis=1)
    return table


def prepare_native_model(
    spec: ModelSpec,
    config: EngineConfig,
    *,
    threads: int | None = None,
    library_path: Path | None = None,
) -> NativeModel:
    """Load the library, choose the instruction set, and pack the weights.

    Raises:
        LibraryMissingError: the kernels were not built.
        ConfigError: the kernels can't run the model (see `why_not_native`), bfloat16 activations
            are requested for quantised weights, or SESSIOND_CPU_ISA is not supported.
        ModelFileError: a tensor is missing, has the wrong shape or an unknown type.
    """
    reason = why_not_native(spec, config)
    if reason is not None:
        raise ConfigError("attention_backend", "native", f"torch: {reason}")
    if config.max_model_len > spec.max_position:
        raise ConfigError(
            "max_model_len",
            config.max_model_len,
            f"0 (the model's limit) to {spec.max_position} tokens",
        )
    if config.dtype == "bfloat16" and config.weights != "dequantized" and has_quantized(spec):
        raise ConfigError(
            "dtype",
            "bfloat16",
            "auto (int8 activations, as this model's quantised weights need), "
            "or bfloat16 with weights=dequantized",
        )
    library = load_library(library_path)
    isa = choose_isa(library)
    weights = load_native_weights(spec, library, dequantize=config.weights == "dequantized")
    return NativeModel(
        spec,
        library,
        weights,
        isa=isa,
        kv_dtype="bfloat16" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
        threads=threads or config.cpu_threads or usable_processors(),
        max_model_len=config.max_model_len or spec.max_position,
        attention_reason=choose_attention(config.attention_backend, [native_candidate()]).reason,
    )
