"""Builds an engine: loads the model, measures memory, sizes the pool. Engine process only."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from engine.core.loop import EngineLoop, TokenText
from engine.device.cuda import CudaDevice
from engine.device.limits import CONTEXT_BYTES, LIMIT_VARIABLE, Free, memory_limit
from engine.errors import ConfigError, ModelFileError
from engine.files.catalog import CATALOG, resolve_model
from engine.files.model_spec import ModelSpec
from engine.files.spec_reader import read_spec
from engine.ipc.messages import EngineInfo, TurnEvent
from engine.ipc.queries import TierInfo
from engine.kv.tiers.build import open_tiers
from engine.model.choice import AnyModel, prepare
from engine.planning.pool_size import Measured, PoolPlan, free_on_gpu, plan_pool
from engine.system.byte_size import format_bytes
from engine.system.limits import free_host_bytes, usable_processors
from engine.text.tokenizer import load_tokenizer


def build_engine(
    config: EngineConfig,
    emit: Callable[[TurnEvent], None],
    *,
    report: Callable[[str], None] = lambda _text: None,
) -> tuple[EngineLoop, EngineInfo]:
    """Load the model that `config` names, size its largest step, assign the rest to the pool.

    `report` receives progress texts.

    Raises:
        ModelFileError: the model does not exist, or its files can't be used.
        ConfigError: a setting can't work with this model or on this machine.
    """
    path = resolve_model(config.model, lambda _step: None)
    spec = read_spec(path)
    if not config.cpu_threads:
        config = msgspec.structs.replace(config, cpu_threads=usable_processors())
    report(f"loading {served_name(config.model)}")
    loaded = _load(spec, config)
    tokenizer = load_tokenizer(path)
    if tokenizer.ordinary_end > spec.vocab_size:
        # Added tokens are not checked: models come with a padding token that has no row and no use.
        raise ModelFileError(
            f"{path}: text encodes to ids up to {tokenizer.ordinary_end - 1}, but the model has "
            f"rows for {spec.vocab_size}: the tokenizer belongs to another model"
        )
    report(f"weights take {format_bytes(loaded.weights_bytes)}; sizing the largest step")
    measured = _measure(loaded, config)
    plan = plan_pool(config, measured)
    engine_loop, tier_info = assemble(
        config, loaded, plan.num_blocks, tokenizer, emit, max_model_len=plan.max_model_len
    )
    return engine_loop, _info(config, loaded, measured, plan, tier_info)


def assemble(  # noqa: PLR0913 -- the parts of an engine
    config: EngineConfig,
    loaded: AnyModel,
    num_blocks: int,
    tokenizer: TokenText,
    emit: Callable[[TurnEvent], None],
    *,
    max_model_len: int,
) -> tuple[EngineLoop, tuple[TierInfo, ...]]:
    """Build a loop around a loaded model, with a pool of `num_blocks` and the configured tiers.

    Raises:
        ConfigError: the device can't allocate the pool.
    """
    runner = loaded.runner(num_blocks)
    tiers, tier_info = open_tiers(
        config,
        runner,
        block_bytes=loaded.kv_bytes_per_block,
        fingerprint=loaded.fingerprint,
        streamed=runner.streamed,
    )
    engine_loop = EngineLoop(
        config=config,
        num_blocks=num_blocks,
        kv_bytes_per_block=loaded.kv_bytes_per_block,
        max_model_len=max_model_len,
        fingerprint=loaded.fingerprint,
        runner=runner,
        tiers=tiers,
        move_pages=runner.move_pages,
        tokenizer=tokenizer,
        emit=emit,
        clock=time.monotonic,
    )
    return engine_loop, tier_info


def served_name(model: str) -> str:
    """Return the name that clients use: that of the file or folder, without path and suffix."""
    path = Path(model).expanduser()
    if model in CATALOG or not path.exists():
        return model
    return path.resolve().name.removesuffix(".gguf")


def _load(spec: ModelSpec, config: EngineConfig) -> AnyModel:
    try:
        return prepare(spec, config)
    except MemoryError as error:
        allowed = (
            "a model whose weights fit in memory: use a smaller one, a smaller format "
            f"(--dtype bfloat16) or another device: {error}"
        )
        raise ConfigError("model", config.model, allowed) from error


def _measure(loaded: AnyModel, config: EngineConfig) -> Measured:
    rows = config.max_num_batched_tokens
    try:
        activation_bytes = loaded.measure_activation_peak(
            rows, config.max_num_seqs + config.num_speculative_tokens
        )
    except MemoryError as error:
        allowed = f"lower: the largest step does not fit in memory beside the weights: {error}"
        raise ConfigError("max_num_batched_tokens", rows, allowed) from error
    _free(loaded)  # a device that does not report its memory is refused before graphs are measured
    graph_bytes = loaded.measure_graphs()
    free = _free(loaded)
    return Measured(
        device=loaded.device,
        free_bytes=free.free_bytes,
        free_reason=free.reason,
        weights_bytes=loaded.weights_bytes,
        activation_bytes=activation_bytes,
        graph_bytes=graph_bytes,
        kv_bytes_per_block=loaded.kv_bytes_per_block,
        model_max_len=loaded.spec.max_position,
    )


def _free(loaded: AnyModel) -> Free:
    if not loaded.device.startswith("cuda"):
        return Free(free_bytes=free_host_bytes())
    device = CudaDevice()
    device.release_cached()  # otherwise the memory of the measuring steps counts as taken
    try:
        memory_state = device.memory()
    except RuntimeError as error:  # HAMi's, when CUDA itself exceeds the limit (HAMi#1370)
        allowed = (
            f"a device that reports its memory; a limit ({LIMIT_VARIABLE}) must exceed what CUDA "
            f"itself takes, about {format_bytes(CONTEXT_BYTES)}: {error}"
        )
        raise ConfigError("device", loaded.device, allowed) from error
    limit = memory_limit(os.environ, device.index)
    return free_on_gpu(memory_state, limit, loaded.kv_bytes_per_block)


def _info(
    config: EngineConfig,
    loaded: AnyModel,
    measured: Measured,
    plan: PoolPlan,
    tiers: tuple[TierInfo, ...],
) -> EngineInfo:
    return EngineInfo(
        model=served_name(config.model),
        architecture=loaded.spec.architecture,
        device=loaded.device,
        weights=loaded.weights,
        dtype=loaded.dtype,
        kv_dtype=loaded.kv_dtype,
        attention=loaded.attention,
        attention_reason=loaded.attention_reason,
        vocab_size=loaded.spec.vocab_size,
        max_model_len=plan.max_model_len,
        block_size=loaded.block_size,
        total_blocks=plan.num_blocks,
        kv_bytes_per_token=loaded.kv_bytes_per_block // loaded.block_size,
        pool_bytes=plan.num_blocks * loaded.kv_bytes_per_block,
        pool_reason=plan.reason,
        weights_bytes=loaded.weights_bytes,
        activation_bytes=measured.activation_bytes,
        free_bytes=measured.free_bytes,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_waiting=config.max_num_waiting,
        fingerprint=loaded.fingerprint,
        tiers=tiers,
    )
