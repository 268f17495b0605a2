"""Divides a device's memory into weights, activations, overhead and blocks of KV. Pure."""

from dataclasses import dataclass, replace

from msgspec import structs

from engine.config import EngineConfig
from engine.device.limits import DeviceMemoryState
from engine.errors import ConfigError
from engine.planning.device_sizes import DeviceSizes, Placing, size_up, vision_activation_bytes
from engine.planning.formats import EXPERTS_ONLY, WEIGHT_BITS
from engine.planning.layers import SEVERAL
from engine.planning.pool_size import Measured, PoolPlan, free_on_gpu, plan_pool
from engine.planning.shape import DecoderShape
from engine.planning.shape_reader import PlannedModel
from engine.planning.vision import USUAL_IMAGE
from engine.system.byte_size import format_bytes
from engine.system.limits import free_host_bytes

SPARE_BYTES = 2 * 2**30  # what a GPU's libraries, attention workspaces and fragmentation may take

_COUNTS = (2, 4, 8, 16, 32, 64)  # devices that share a model


def free_bytes() -> int:
    """Main memory available now, within the limits of this process's control groups."""
    return free_host_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One device. `num_bytes`: a GPU's whole memory, or a CPU's free memory before the start.

    `overhead_bytes` of it are taken by others before the server looks: driver, runtime, neighbours.
    """

    num_bytes: int
    overhead_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The context of one conversation.

    Its images, of `pixels` each, are encoded together, and those of `image_requests` at once.
    """

    text_tokens: int = 0
    images: int = 0
    generated_tokens: int = 0
    pixels: tuple[int, int] = USUAL_IMAGE
    image_requests: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of one device by use, and the capacity of its pool.

    `pool` is None when no pool fits beside the weights, and `refusal` says why. `usable_bytes` is
    the server's share of the memory, weights included. `utilization` is `gpu_memory_utilization`,
    None on a CPU; `widest` is the share that leaves `SPARE_BYTES`, and its blocks. `load_bytes` is
    the KV of one conversation.
    """

    model: PlannedModel
    sizes: DeviceSizes
    memory: DeviceMemory
    block_size: int
    vision_activation_bytes: int
    encoder_host_bytes: int
    pool: PoolPlan | None
    refusal: str
    usable_bytes: int
    utilization: float | None
    widest: tuple[float, int] | None
    tokens_per_image: int
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
        blocks = -(-held_tokens(tokens, self.model.language) // self.block_size)
        needed = blocks * self.sizes.kv_bytes_per_block
        return self.kv_bytes // (
            needed + window_bytes(tokens, self.model, self.sizes, self.block_size)
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """KV of a token in all layers."""
        sizes = self.sizes
        return (sizes.kv_bytes_per_block + sizes.window_bytes_per_block) // self.block_size

    @property
    def kv_bytes_per_token_beyond_window(self) -> int:
        """KV that each further token of a context adds, once it is longer than the window."""
        shape = self.model.language
        if shape.sliding_window is not None and all(shape.window_layers):
            return 0
        return self.sizes.kv_bytes_per_block // self.block_size

    @property
    def kv_bytes(self) -> int:
        """Bytes of the pool."""
        if self.pool is None:
            return 0
        window = self.model.language.sliding_window or 0
        reserved = window_bytes(window, self.model, self.sizes, self.block_size)
        return self.num_blocks * self.sizes.kv_bytes_per_block + reserved


def held_tokens(tokens: int, shape: DecoderShape) -> int:
    """Tokens of a context whose KV is kept: blocks outside the window of every layer are freed."""
    window = shape.sliding_window
    return tokens if window is None or not all(shape.window_layers) else min(tokens, window)


def window_bytes(tokens: int, model: PlannedModel, sizes: DeviceSizes, block_size: int) -> int:
    """KV of a context in sliding layers that are counted apart, in whole blocks."""
    held = min(tokens, model.language.sliding_window or 0)
    return -(-held // block_size) * sizes.window_bytes_per_block


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
    tokens_per_image = 0 if model.vision is None else model.vision.tokens(load.pixels)
    load_tokens = load.text_tokens + load.images * tokens_per_image + load.generated_tokens
    together = load.images * load.image_requests
    encoding_bytes = vision_activation_bytes(model, together, load.pixels, sizes)
    host_bytes = sizes.vision_bytes + encoding_bytes if sizes.encoder_on_cpu else 0
    encoding_bytes = 0 if sizes.encoder_on_cpu else encoding_bytes
    window = model.language.sliding_window or 0
    reserved = window_bytes(window, model, sizes, config.block_size)
    measured = Measured(
        device=sizes.device,
        free_bytes=_free(memory, sizes),
        weights_bytes=_weights(sizes),
        activation_bytes=sizes.activation_bytes + encoding_bytes + reserved,
        kv_bytes_per_block=sizes.kv_bytes_per_block,
        model_max_len=model.language.max_position,
    )
    is_gpu = sizes.device == "cuda"
    usable = _usable(memory, config.gpu_memory_utilization if is_gpu else 1.0)
    pool, refusal = _pool(config, measured)
    if _weights(sizes) > usable:
        pool, refusal = None, _too_heavy(sizes, usable, memory)
    return MemoryPlan(
        model=model,
        sizes=sizes,
        memory=memory,
        block_size=config.block_size,
        vision_activation_bytes=encoding_bytes,
        encoder_host_bytes=host_bytes,
        pool=pool,
        refusal=refusal,
        usable_bytes=usable,
        utilization=config.gpu_memory_utilization if is_gpu else None,
        widest=_widest(config, measured, memory) if is_gpu else None,
        tokens_per_image=tokens_per_image,
        load_tokens=load_tokens,
        load_bytes=held_tokens(load_tokens, model.language)
        * sizes.kv_bytes_per_block
        // config.block_size
        + window_bytes(load_tokens, model, sizes, config.block_size),
    )


def _too_heavy(sizes: DeviceSizes, usable: int, memory: DeviceMemory) -> str:
    weights, own = _weights(sizes), ""
    if weights > sizes.weights_bytes:
        own = f" ({format_bytes(weights - sizes.weights_bytes)} of vision encoder and adapters)"
    return (
        f"weights in {sizes.weights_format} take {format_bytes(weights)}{own}, which is more than "
        f"the {format_bytes(usable)} that may be used of {format_bytes(memory.num_bytes)}"
    )


def ways_to_fit(
    config: EngineConfig, model: PlannedModel, placing: Placing, memory: DeviceMemory, load: Load
) -> tuple[tuple[Placing, MemoryPlan], ...]:
    """Return what would fit where a plan does not: smaller formats, more devices, or both.

    Formats go from the largest that fits to the smallest; devices are the fewest that suffice.
    """

    def fits(changed: Placing) -> tuple[tuple[Placing, MemoryPlan], ...]:
        try:
            plan = plan_memory(config, model, size_up(model, config, changed), memory, load)
        except ConfigError:  # heads can't be divided among so many
            return ()
        return () if plan.pool is None else ((changed, plan),)

    def on_more(start: Placing) -> list[tuple[Placing, MemoryPlan]]:
        found = [
            way
            for count in _COUNTS
            if count > placing.devices
            for way in fits(replace(start, devices=count))
        ]
        return found[:1]

    names = _smaller_formats(model, placing)
    formats = [way for name in names for way in fits(replace(placing, weights_format=name))]
    ways = [*formats, *on_more(placing)]
    if not ways and names:
        ways = on_more(replace(placing, weights_format=names[-1]))
    return tuple(ways)


def _smaller_formats(model: PlannedModel, placing: Placing) -> list[str]:
    """Formats with fewer bits than the planned one, the largest first."""
    most = min(16.0, WEIGHT_BITS.get(placing.weights_format or "", 16.0))
    has_experts = any(count > SEVERAL for layer in model.layers for count, _, _ in layer.matrices)
    return sorted(
        (
            name
            for name, bits in WEIGHT_BITS.items()
            if bits < most and (has_experts or name not in EXPERTS_ONLY)
        ),
        key=lambda name: -WEIGHT_BITS[name],
    )


def _free(memory: DeviceMemory, sizes: DeviceSizes) -> int:
    """Bytes that the server finds free once the weights are loaded."""
    weights = _weights(sizes)
    free = max(0, memory.num_bytes - memory.overhead_bytes - weights)
    if sizes.device != "cuda":
        return free
    state = DeviceMemoryState(free=free, total=memory.num_bytes, reserved=weights)
    return free_on_gpu(state, None, sizes.kv_bytes_per_block).free_bytes


def _usable(memory: DeviceMemory, share: float) -> int:
    return int(max(0, memory.num_bytes - memory.overhead_bytes) * share)


def _widest(
    config: EngineConfig, measured: Measured, memory: DeviceMemory
) -> tuple[float, int] | None:
    """The largest share, in hundredths, that leaves `SPARE_BYTES`, and its blocks, if any fit."""
    found = _usable(memory, 1.0)
    share = int(100 * max(0, found - SPARE_BYTES) / max(1, found)) / 100
    if share <= 0:
        return None
    pool, _ = _pool(structs.replace(config, gpu_memory_utilization=share), measured)
    return None if pool is None else (share, pool.num_blocks)


def _weights(sizes: DeviceSizes) -> int:
    vision = 0 if sizes.encoder_on_cpu else sizes.vision_bytes
    return sizes.weights_bytes + vision + sizes.lora_bytes


def _pool(config: EngineConfig, measured: Measured) -> tuple[PoolPlan | None, str]:
    """The pool by the server's rule, or why there is none."""
    try:
        return plan_pool(config, measured), ""
    except ConfigError as error:
        return None, str(error)
