"""Divides a device's memory into weights, activations, overhead and blocks of KV. Pure."""

from dataclasses import dataclass

from msgspec import structs

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.planning.device_sizes import DeviceSizes, vision_activation_bytes
from engine.planning.pool_size import Measured, PoolPlan, plan_pool
from engine.planning.shape import DecoderShape
from engine.planning.shape_reader import PlannedModel
from engine.system.limits import free_host_bytes


def free_bytes() -> int:
    """Main memory available now, within the limits of this process's control groups."""
    return free_host_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One device. `num_bytes`: a GPU's whole memory, or a CPU's free memory before the start.

    `overhead_bytes` is reserved for driver, runtime and fragmentation. `utilization` is
    `gpu_memory_utilization`; None: all but the overhead is used.
    """

    num_bytes: int
    overhead_bytes: int
    utilization: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The context of one conversation. Its images are encoded together."""

    text_tokens: int = 0
    images: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of one device by use, and the capacity of its pool.

    `pool` is None when no pool fits beside the weights, and `refusal` says why. `utilization` is
    the best `gpu_memory_utilization`, None on a CPU. `load_bytes` is the KV of one conversation.
    """

    model: PlannedModel
    sizes: DeviceSizes
    memory: DeviceMemory
    block_size: int
    vision_activation_bytes: int
    pool: PoolPlan | None
    refusal: str
    utilization: float | None
    load_tokens: int
    load_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """Bytes in use before the first token."""
        sizes = self.sizes
        return (
            _weights(sizes)
            + sizes.activation_bytes
            + self.vision_activation_bytes
            + self.memory.overhead_bytes
        )

    @property
    def needed_bytes(self) -> int:
        """Bytes that one conversation of the planned load needs, fixed ones included."""
        return self.fixed_bytes + self.load_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return 0 if self.pool is None else self.pool.num_blocks

    @property
    def total_tokens(self) -> int:
        """Tokens that the blocks hold."""
        return self.num_blocks * self.block_size

    def sessions_of(self, tokens: int) -> int:
        """Number of conversations of this many tokens that fit at once."""
        return self.num_blocks // -(-held_tokens(tokens, self.model.language) // self.block_size)


def held_tokens(tokens: int, shape: DecoderShape) -> int:
    """Tokens of a context whose KV is kept: blocks outside the window of every layer are freed."""
    window = shape.sliding_window
    return tokens if window is None or not all(shape.window_layers) else min(tokens, window)


def plan_memory(
    config: EngineConfig,
    model: PlannedModel,
    sizes: DeviceSizes,
    memory: DeviceMemory,
    load: Load,
) -> MemoryPlan:
    """Plan one device.

    Raises:
        ConfigError: the load has images, and the model accepts none.
    """
    if load.images and model.vision is None:
        raise ConfigError("images", load.images, "0, as the model accepts no images")
    tokens_per_image = 0 if model.vision is None else model.vision.tokens_per_image
    load_tokens = load.text_tokens + load.images * tokens_per_image + load.generated_tokens
    encoding_bytes = vision_activation_bytes(model, load.images, sizes)
    spare = max(0, memory.num_bytes - memory.overhead_bytes)
    best = int(100 * spare / max(1, memory.num_bytes)) / 100
    pool, refusal = _pool(
        config,
        Measured(
            device=sizes.device,
            free_bytes=max(0, _usable(memory) - _weights(sizes)),
            weights_bytes=_weights(sizes),
            activation_bytes=sizes.activation_bytes + encoding_bytes,
            kv_bytes_per_block=sizes.kv_bytes_per_block,
            model_max_len=model.language.max_position,
        ),
    )
    return MemoryPlan(
        model=model,
        sizes=sizes,
        memory=memory,
        block_size=config.block_size,
        vision_activation_bytes=encoding_bytes,
        pool=pool,
        refusal=refusal,
        utilization=best if sizes.device == "cuda" else None,
        load_tokens=load_tokens,
        load_bytes=held_tokens(load_tokens, model.language)
        * sizes.kv_bytes_per_block
        // config.block_size,
    )


def _usable(memory: DeviceMemory) -> int:
    if memory.utilization is None:
        return memory.num_bytes - memory.overhead_bytes
    return int(memory.num_bytes * memory.utilization)


def _weights(sizes: DeviceSizes) -> int:
    return sizes.weights_bytes + sizes.vision_bytes + sizes.lora_bytes


def _pool(config: EngineConfig, measured: Measured) -> tuple[PoolPlan | None, str]:
    """The pool by the server's rule, or why there is none."""
    try:
        # `free_bytes` is within the share of the GPU already
        whole = structs.replace(config, gpu_memory_utilization=1.0)
        return plan_pool(whole, measured), ""
    except ConfigError as error:
        return None, str(error)
