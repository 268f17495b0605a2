"""Sizes the pool, and explains its size. Pure."""

import math
from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.device.limits import DeviceMemoryState, Free, free_within
from engine.errors import ConfigError
from engine.system.byte_size import format_bytes

CPU_SHARE = 4  # a server on a personal machine leaves three quarters of the free memory
CPU_MOST_BYTES = 4 * 2**30
_LEAST_BLOCKS = 2  # one for a turn's tokens, one for a copy of a shared tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements after the weights were loaded and a worst-case step was run.

    `free_bytes` is what the device can still allocate, with activations and graphs freed again;
    `free_reason` names the limit, if it is lower than the device's memory. `graph_bytes`: memory
    that captured steps keep.
    """

    device: str
    free_bytes: int
    weights_bytes: int
    activation_bytes: int
    kv_bytes_per_block: int
    model_max_len: int
    graph_bytes: int = 0
    free_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """The pool's size, the longest context that fits it, and the reason, as text."""

    num_blocks: int
    max_model_len: int
    reason: str


def free_on_gpu(memory_state: DeviceMemoryState, limit: int | None, block_bytes: int) -> Free:
    """Return what the pool and the steps of a GPU may take, beside the loaded weights.

    `limit`: that of a sharing layer, in bytes. The pool allocates one block of `block_bytes` more
    than planned, which has no owner.
    """
    free = free_within(memory_state, limit)
    return replace(free, free_bytes=max(0, free.free_bytes - block_bytes))


def plan_pool(config: EngineConfig, measured: Measured) -> PoolPlan:
    """Decide the pool's size and the longest context.

    A pool holds one turn of `max_model_len` tokens and one more block (the copy of a shared tail).
    Where that does not fit, a `max_model_len` that was not requested shrinks.

    Raises:
        ConfigError: the request does not fit; the message names the required memory.
    """
    wanted_len = config.max_model_len or measured.model_max_len
    if wanted_len > measured.model_max_len:
        raise ConfigError(
            "max_model_len", wanted_len, f"at most {measured.model_max_len}, the model's limit"
        )
    whole_turn = _blocks_of(wanted_len, config.block_size)
    num_blocks, reason = _budget(config, measured, whole_turn)
    if num_blocks < _LEAST_BLOCKS or (config.max_model_len and num_blocks < whole_turn):
        needed = whole_turn if config.max_model_len else _LEAST_BLOCKS
        raise _too_small(config, measured, needed, num_blocks)
    if num_blocks >= whole_turn:
        return PoolPlan(num_blocks=num_blocks, max_model_len=wanted_len, reason=reason)
    held_len = (num_blocks - 1) * config.block_size
    cut = f"; holds one context of {held_len} tokens: max_model_len is {held_len}, not {wanted_len}"
    return PoolPlan(num_blocks=num_blocks, max_model_len=held_len, reason=reason + cut)


def _blocks_of(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size) + 1


def _budget(config: EngineConfig, measured: Measured, whole_turn: int) -> tuple[int, str]:
    """Blocks, and the origin of the number."""
    per_block = measured.kv_bytes_per_block
    steps_bytes = measured.activation_bytes + measured.graph_bytes
    left = max(0, measured.free_bytes - steps_bytes)
    if config.kv_cache_memory:
        if config.kv_cache_memory > left:
            allowed = f"at most {format_bytes(left)}, which is free now beside the activations"
            raise ConfigError("kv_cache_memory", config.kv_cache_memory, allowed)
        return config.kv_cache_memory // per_block, "as set by --kv-cache-memory"
    if measured.device.startswith("cuda"):
        share = config.gpu_memory_utilization
        all_bytes = measured.free_bytes + measured.weights_bytes
        budget = int(all_bytes * share) - measured.weights_bytes - steps_bytes
        limit = f" within {measured.free_reason}" if measured.free_reason else ""
        graphs = f", graphs ({format_bytes(measured.graph_bytes)})" if measured.graph_bytes else ""
        reason = (
            f"{share:.0%} of {format_bytes(all_bytes)} free on the device{limit}, less weights "
            f"({format_bytes(measured.weights_bytes)}){graphs} and activations "
            f"({format_bytes(measured.activation_bytes)})"
        )
        return max(0, budget) // per_block, reason
    return _cpu_budget(measured, left, whole_turn)


def _cpu_budget(measured: Measured, left: int, whole_turn: int) -> tuple[int, str]:
    per_block = measured.kv_bytes_per_block
    budget = min(left // CPU_SHARE, CPU_MOST_BYTES)
    capped = f", at most {format_bytes(CPU_MOST_BYTES)}" if budget == CPU_MOST_BYTES else ""
    if budget // per_block >= whole_turn:
        reason = f"a quarter of {format_bytes(left)} free memory{capped}; --kv-cache-memory sets it"
        return budget // per_block, reason
    if left * 9 // 10 // per_block >= whole_turn:
        return whole_turn, f"one whole context, out of {format_bytes(left)} free memory"
    return budget // per_block, f"a quarter of {format_bytes(left)} free memory"


def _too_small(
    config: EngineConfig, measured: Measured, needed: int, num_blocks: int
) -> ConfigError:
    need_bytes = needed * measured.kv_bytes_per_block
    need = (
        f"{format_bytes(need_bytes)} ({need_bytes} bytes) or more, for {needed} blocks of "
        f"{config.block_size} tokens"
    )
    if config.kv_cache_memory:
        return ConfigError("kv_cache_memory", config.kv_cache_memory, need)
    if measured.device.startswith("cuda") and not config.max_model_len:
        return _too_little_share(config, measured, need_bytes)
    have = format_bytes(num_blocks * measured.kv_bytes_per_block)
    if config.max_model_len:
        fits = max(0, num_blocks - 1) * config.block_size
        return ConfigError(
            "max_model_len",
            config.max_model_len,
            f"at most {fits}: memory for the pool is {have}, this needs {need}",
        )
    return ConfigError("kv_cache_memory", "auto", f"{need}; only {have} are available")


def _too_little_share(config: EngineConfig, measured: Measured, need_bytes: int) -> ConfigError:
    """The share of a GPU is too small for weights, a step and the least pool, or the GPU is."""
    steps_bytes = measured.activation_bytes + measured.graph_bytes
    all_bytes = measured.free_bytes + measured.weights_bytes
    need_bytes += measured.weights_bytes + steps_bytes
    parts = (
        f"weights take {format_bytes(measured.weights_bytes)} and the largest step "
        f"{format_bytes(steps_bytes)} of {format_bytes(all_bytes)}"
    )
    share = math.ceil(100 * need_bytes / max(1, all_bytes)) / 100
    if share <= 1:
        allowed = f"at least {share:g}: {parts}"
        return ConfigError("gpu_memory_utilization", config.gpu_memory_utilization, allowed)
    allowed = f"a model that leaves room for KV: {parts}; use a smaller format or another device"
    return ConfigError("model", config.model, allowed)
