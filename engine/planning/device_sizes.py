"""Memory of a model on each of its devices: weights, a step, a block of KV. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.planning.formats import (
    EXPERTS_ONLY,
    FLOAT_FORMATS,
    GGML_TYPES,
    KV_ALIASES,
    KV_BYTES,
    LAYERS_ONLY,
    WEIGHT_BITS,
)
from engine.planning.layers import SEVERAL, LayerShape, kv_values, part_of_layers
from engine.planning.native_sizes import (
    native_activation_bytes,
    native_kv_bytes_per_block,
    native_weights_bytes,
    why_not_native,
)
from engine.planning.offload_sizes import BUFFERS, check_offload, offload_is_torchs
from engine.planning.shape import (
    DecoderShape,
    LanguageShape,
    kv_values_per_token,
    layer_matrices,
    matrices,
    vector_values,
)
from engine.planning.shape_reader import PlannedModel
from engine.planning.torch_sizes import torch_weights_bytes

_PACKED = {"q4_1": "Q4_1", "q4_0": "Q4_0", "q8_0": "Q8_0"}  # formats that the kernels keep
_LOGIT_BYTES = 4
_ANGLE_BYTES = 4
_MOST_GATHERED = 16_384  # rows of KV that one call copies (engine.model.attention.gather)
_VALUES_AT_ONCE = 2**24  # dequantised at once (engine.model.weights.quantized)
_DEQUANTISED_BYTES = 12  # per value: float32 before and after its scale, and bytes of its quants
_LOGIT_COPIES = 3  # logits, their softmax, and the copy that sampling sorts


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Where a model will run. `weights_format` None: the format that the server would choose.

    Each of `devices` devices has one part of every layer (tensor parallel). A slot has one LoRA
    adapter of `lora_rank` for all matrices of all layers, in 16 bits.
    """

    device: str  # cpu | cuda
    devices: int = 1
    weights_format: str | None = None
    lora_slots: int = 0
    lora_rank: int = 16
    encoder_on_cpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSizes:
    """Bytes on one device.

    A model with full and sliding layers that this server does not run has the KV of its full layers
    in `kv_bytes_per_block`, and that of the sliding ones, up to their window, in
    `window_bytes_per_block`. With `encoder_on_cpu`, `vision_bytes` lie in main memory. `runner` is
    what runs it here: native, torch or none.
    """

    device: str
    weights_format: str
    kv_dtype: str
    weights_bytes: int
    vision_bytes: int
    lora_bytes: int
    activation_bytes: int
    kv_bytes_per_block: int
    window_bytes_per_block: int = 0
    encoder_on_cpu: bool = False
    runner: str = "torch"
    runner_reason: str = ""


def size_up(model: PlannedModel, config: EngineConfig, placing: Placing) -> DeviceSizes:
    """Predict the sizes of a model under the server's settings.

    Raises:
        ConfigError: a setting can't work with this model.
    """
    shape = _part_of(model.language, placing.devices)
    on_torch = why_not_native(shape, config) if placing.device == "cpu" else "the device is a GPU"
    if model.layers:
        sizes = _layered(model, shape, config, placing)
    elif on_torch is None:
        offload_is_torchs(config.weights_offload_layers)
        sizes = _native(model, shape, config, placing)
    else:
        sizes = _torch(model, shape, config, placing)
    sizes = replace(sizes, encoder_on_cpu=placing.encoder_on_cpu)
    if reason := _why_not_here(model, placing):
        return replace(sizes, runner="none", runner_reason=reason)
    return replace(sizes, runner="torch" if on_torch else "native", runner_reason=on_torch or "")


def _why_not_here(model: PlannedModel, placing: Placing) -> str:
    """Why this server can't run a model so; empty if it can."""
    formats = {kind.name for kind in GGML_TYPES.values()}
    if model.refusal:
        return model.refusal
    if placing.weights_format is not None and placing.weights_format not in formats:
        allowed = ", ".join(sorted(formats))
        return f"weights_format must be one of {allowed} (got {placing.weights_format})"
    if placing.devices > 1:
        return f"devices must be 1, as an engine uses one device (got {placing.devices})"
    return ""


def _native(
    model: PlannedModel, shape: DecoderShape, config: EngineConfig, placing: Placing
) -> DeviceSizes:
    stored = placing.weights_format or model.stored_format
    is_bfloat = config.weights == "dequantized" or stored in FLOAT_FORMATS

    def packed(name: str) -> str:
        if is_bfloat:
            return "BF16"
        kept = stored if placing.weights_format or not model.stored else model.stored[name]
        return _PACKED.get(kept, "Q8_0")

    kv_dtype = "bfloat16" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    formats = {packed(matrix.name) for matrix in matrices(shape)}
    return DeviceSizes(
        device="cpu",
        weights_format="+".join(sorted(formats)),
        kv_dtype=kv_dtype,
        weights_bytes=native_weights_bytes(shape, packed),
        vision_bytes=_vision_bytes(model, 2),
        lora_bytes=_lora_bytes(shape, placing),
        activation_bytes=native_activation_bytes(
            shape,
            config.max_num_batched_tokens,
            config.max_num_seqs + config.num_speculative_tokens,
        ),
        kv_bytes_per_block=native_kv_bytes_per_block(shape, kv_dtype),
    )


def _torch(
    model: PlannedModel, shape: DecoderShape, config: EngineConfig, placing: Placing
) -> DeviceSizes:
    dtype, kv_dtype = _torch_types(model, config, placing)
    check_offload(shape.num_layers, config.weights_offload_layers)
    values = kv_values_per_token(shape) * config.block_size
    kept = model.stored if config.weights == "native" else None
    formats = sorted(set((kept or {}).values()) - FLOAT_FORMATS)
    if placing.weights_format is None:
        weights_bytes = torch_weights_bytes(
            shape,
            KV_BYTES[dtype],
            lambda name: dtype if kept is None else kept[name],
            config.weights_offload_layers,
        )
    else:
        weights_bytes = _weights_bytes(shape, placing.weights_format, config.weights_offload_layers)
    activation_bytes = _torch_activation_bytes(
        shape, config, placing.device, KV_BYTES[dtype], is_kept=bool(formats)
    )
    return DeviceSizes(
        device=placing.device,
        weights_format=placing.weights_format or "+".join(map(str.upper, formats)) or dtype,
        kv_dtype=kv_dtype,
        weights_bytes=weights_bytes,
        vision_bytes=_vision_bytes(model, KV_BYTES[dtype]),
        lora_bytes=_lora_bytes(shape, placing),
        activation_bytes=activation_bytes,
        kv_bytes_per_block=values * KV_BYTES[kv_dtype],
    )


def _torch_types(model: PlannedModel, config: EngineConfig, placing: Placing) -> tuple[str, str]:
    """The types of the arithmetic and of KV."""
    automatic = "float32"
    if placing.device == "cuda":
        automatic = "float16" if model.stored_format == "float16" else "bfloat16"
    dtype = automatic if config.dtype == "auto" else config.dtype
    kv_dtype = dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    kv_dtype = KV_ALIASES.get(kv_dtype, kv_dtype)
    if kv_dtype not in KV_BYTES:
        raise ConfigError(
            "kv_cache_dtype",
            kv_dtype,
            "auto, float32, bfloat16, float16 or fp8 where torch runs the model",
        )
    return dtype, kv_dtype


def _layered(
    model: PlannedModel, shape: DecoderShape, config: EngineConfig, placing: Placing
) -> DeviceSizes:
    """Sizes of a model that other servers run."""
    dtype, kv_dtype = _torch_types(model, config, placing)
    layers = part_of_layers(model.layers, placing.devices)
    weights_format = placing.weights_format or dtype
    per_value = KV_BYTES[kv_dtype] * config.block_size
    full, sliding = kv_values(layers, windowed=False), kv_values(layers, windowed=True)
    thin = sum(n * (rows + columns) for each in layers for n, rows, columns in each.matrices)
    return DeviceSizes(
        device=placing.device,
        weights_format=weights_format,
        kv_dtype=kv_dtype,
        weights_bytes=_layered_weights(layers, shape, weights_format),
        vision_bytes=_vision_bytes(model, KV_BYTES[dtype]),
        lora_bytes=placing.lora_slots * thin * placing.lora_rank * 2,
        activation_bytes=_torch_activation_bytes(
            shape, config, placing.device, KV_BYTES[dtype], is_kept=False
        ),
        kv_bytes_per_block=(full or sliding) * per_value,
        window_bytes_per_block=sliding * per_value if full else 0,
    )


def _layered_weights(layers: Sequence[LayerShape], shape: DecoderShape, weights_format: str) -> int:
    bits = WEIGHT_BITS[weights_format]
    wide = max(16.0, bits)  # vectors, and what the format leaves out
    outside = wide if weights_format in LAYERS_ONLY else bits
    dense = wide if weights_format in EXPERTS_ONLY else bits
    total = (1 if shape.tied_embeddings else 2) * shape.vocab_size * shape.hidden_size * outside
    total += (sum(each.vector_values for each in layers) + shape.hidden_size) * wide
    for each in layers:
        for count, rows, columns in each.matrices:
            total += count * rows * columns * (bits if count > SEVERAL else dense)
    return round(total / 8)


def _weights_bytes(shape: DecoderShape, weights_format: str, offloaded: int) -> int:
    """Bytes of all weights; vectors have 16 bits, or 32 among 32-bit matrices.

    `offloaded` layers stay in main memory; the device has buffers for them.
    """
    bits = WEIGHT_BITS[weights_format]
    outside = max(16.0, bits) if weights_format in LAYERS_ONLY else bits
    layer = sum(rows * columns for _, rows, columns in layer_matrices(shape))
    tables = (1 if shape.tied_embeddings else 2) * shape.vocab_size * shape.hidden_size
    resident = shape.num_layers - max(0, offloaded - BUFFERS)
    total = resident * layer * bits + tables * outside
    return round((total + vector_values(shape) * max(16.0, bits)) / 8)


def _torch_activation_bytes(
    shape: DecoderShape, config: EngineConfig, device: str, value_bytes: int, *, is_kept: bool
) -> int:
    """Peak memory of a step: inside the MLP, around attention, or at the logits.

    On a CPU attention copies the rows of K and V that it reads, rotates K in 32 bits, and keeps the
    angles of the rotation; a prefill step has a mask, too. On a GPU this is part of the overhead. A
    quantised matrix is made dense before its use, with a limited part of it in float32 at once.
    """
    context = config.max_model_len or shape.max_position
    drawn = config.max_num_seqs + config.num_speculative_tokens
    rows = min(config.max_num_batched_tokens, context)
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    mlp = rows * (2 * hidden + 3 * inner) * value_bytes
    widened = 2 * _ANGLE_BYTES if value_bytes < _ANGLE_BYTES else 0  # before and after rotation
    gathered = keys * (3 * value_bytes + widened) + shape.head_dim * _ANGLE_BYTES
    prefill = rows * (2 * hidden + 4 * queries + 4 * keys) * value_bytes
    decode = 0
    if device == "cpu":
        prefill += rows * context * value_bytes + context * gathered
        decode = min(drawn * context, max(context, _MOST_GATHERED)) * gathered
    logits = drawn * shape.vocab_size * _LOGIT_BYTES * _LOGIT_COPIES
    if is_kept:
        mlp += _dense_bytes(2 * inner * hidden, value_bytes)
        logits = max(logits, _dense_bytes(shape.vocab_size * hidden, value_bytes))
    return max(mlp, prefill, decode, logits)


def _dense_bytes(values: int, value_bytes: int) -> int:
    return values * value_bytes + min(values, _VALUES_AT_ONCE) * _DEQUANTISED_BYTES


def _vision_bytes(model: PlannedModel, value_bytes: int) -> int:
    return 0 if model.vision is None else model.vision.num_parameters * value_bytes


def _lora_bytes(shape: DecoderShape, placing: Placing) -> int:
    """Each matrix has two thin ones: rank x inputs, and outputs x rank."""
    thin = sum(rows + columns for _, rows, columns in layer_matrices(shape))
    return placing.lora_slots * shape.num_layers * thin * placing.lora_rank * 2


def _part_of(shape: DecoderShape, devices: int) -> DecoderShape:
    """The part of a model on one of several devices (Megatron, arXiv 1909.08053).

    Heads, the MLP's inner values and the vocabulary are divided; KV heads are copied if there are
    more devices than KV heads.

    Raises:
        ConfigError: the heads can't be divided evenly.
    """
    if devices == 1:
        return shape
    if shape.num_heads % devices:
        divisors = [n for n in range(1, shape.num_heads + 1) if shape.num_heads % n == 0]
        raise ConfigError("devices", devices, f"a divisor of {shape.num_heads} heads: {divisors}")
    return LanguageShape(
        vocab_size=-(-shape.vocab_size // devices),
        hidden_size=shape.hidden_size,
        intermediate_size=-(-shape.intermediate_size // devices),
        num_layers=shape.num_layers,
        num_heads=shape.num_heads // devices,
        num_kv_heads=max(1, -(-shape.num_kv_heads // devices)),
        head_dim=shape.head_dim,
        max_position=shape.max_position,
        tied_embeddings=shape.tied_embeddings,
        attention_bias=shape.attention_bias,
        output_bias=shape.output_bias,
        qk_norm=shape.qk_norm,
        sliding_window=shape.sliding_window,
        window_layers=tuple(shape.window_layers),
    )


def vision_activation_bytes(
    model: PlannedModel, images: int, pixels: tuple[int, int], sizes: DeviceSizes
) -> int:
    """Bytes held while images are encoded together, with values of 32 or 16 bits."""
    if model.vision is None:
        return 0
    value_bytes = 4 if sizes.weights_format == "float32" else 2
    return model.vision.activation_bytes(images, value_bytes, pixels)
