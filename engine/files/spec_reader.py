"""Reads a model's spec from a GGUF header or a safetensors folder's config.json. No torch."""

import math
import struct
from pathlib import Path

from engine.errors import ModelFileError
from engine.files.fields import MAX_FEW, MAX_SIZE, Fields, read_config_json
from engine.files.gguf_header import GgufHeader, read_gguf_header
from engine.files.model_spec import ModelSpec, RopeSpec

# Names of the families in GGUF and transformers, and the name here.
_GGUF_ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_HF_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_DEFAULT_THETA = 10_000.0
_GGML_F32 = 0
_LEAST_BYTES_OF_VALUE = 0.5  # Q4_0 has 18 bytes for 32


def read_spec(path: Path) -> ModelSpec:
    """Read the spec of a `.gguf` file or of a folder with config.json and *.safetensors.

    Raises:
        ModelFileError: names the field, its value and the allowed values.
    """
    if path.is_dir():
        return read_config_spec(path / "config.json")
    if path.is_file() and path.suffix == ".gguf":
        return _spec_of_gguf(read_gguf_header(path))
    raise ModelFileError(
        f"model must be a .gguf file, or a folder with config.json and *.safetensors "
        f"(got {str(path)!r})"
    )


def _spec_of_gguf(header: GgufHeader) -> ModelSpec:
    everything = Fields(header.path, header.metadata)
    architecture = _GGUF_ARCHITECTURES[
        everything.one_of("general.architecture", tuple(_GGUF_ARCHITECTURES))
    ]
    fields = everything.under(architecture)
    num_heads = fields.size("attention.head_count", most=MAX_FEW)
    hidden_size = fields.size("embedding_length")
    head_dim = fields.size("attention.key_length", hidden_size // num_heads, most=MAX_FEW)
    fields.require("attention.value_length", head_dim, default=head_dim)
    fields.require("rope.dimension_count", head_dim, default=head_dim)
    num_layers = fields.size("block_count", most=MAX_FEW)
    window = fields.optional_size("attention.sliding_window")
    return _checked(
        header.path,
        ModelSpec(
            name=header.path.stem,
            path=header.path,
            format="gguf",
            architecture=architecture,
            vocab_size=_rows(header, "token_embd.weight"),
            hidden_size=hidden_size,
            intermediate_size=fields.size("feed_forward_length"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=fields.size("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
            rope=_gguf_rope(header, fields, head_dim),
            max_position=fields.size("context_length"),
            tied_embeddings="output.weight" not in header.tensors,
            attention_bias="blk.0.attn_q.bias" in header.tensors,
            output_bias="blk.0.attn_output.bias" in header.tensors,
            qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
            sliding_window=window,
            window_layers=(window is not None,) * num_layers,
        ),
    )


def _rows(header: GgufHeader, name: str) -> int:
    info = header.tensors.get(name)
    if info is None or len(info.shape) != 2:
        raise ModelFileError(f"{header.path}: tensor {name!r} is missing or not a matrix")
    if not 1 <= info.shape[1] <= MAX_SIZE:
        raise ModelFileError(
            f"{header.path}: tensor {name!r} must have 1 to {MAX_SIZE} rows (got {info.shape[1]})"
        )
    return info.shape[1]


def _gguf_rope(header: GgufHeader, fields: Fields, head_dim: int) -> RopeSpec:
    theta = fields.number("rope.freq_base", _DEFAULT_THETA)
    scaling = fields.one_of("rope.scaling.type", ("none", "linear"), default="none")
    factor = fields.number("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0
    divisors = [factor] * (head_dim // 2)
    # converters store the divisors of Llama 3's scaling as a tensor
    info = header.tensors.get("rope_freqs.weight")
    if info is not None:
        if info.ggml_type != _GGML_F32 or info.shape != (head_dim // 2,):
            raise ModelFileError(
                f"{header.path}: tensor 'rope_freqs.weight' must be F32 of shape "
                f"({head_dim // 2},) (got type {info.ggml_type} and shape {info.shape})"
            )
        with header.path.open("rb") as file:
            file.seek(info.offset)
            raw = file.read(4 * (head_dim // 2))
        if len(raw) < 4 * (head_dim // 2):
            raise ModelFileError(
                f"{header.path}: tensor 'rope_freqs.weight' ends beyond the end of the file"
            )
        divisors = [factor * value for value in struct.unpack(f"<{head_dim // 2}f", raw)]
        if not all(0 < value < math.inf for value in divisors):
            raise ModelFileError(
                f"{header.path}: values of rope_freqs.weight must be finite and above 0"
            )
    return _rope(theta, divisors)


def read_config_spec(path: Path) -> ModelSpec:
    """Read the spec in a config.json; the weights lie beside it, or are not there yet.

    Raises:
        ModelFileError: names the field, its value and the allowed values.
    """
    fields, folder = read_config_json(path), path.parent
    architecture = _HF_ARCHITECTURES[fields.only("architectures", tuple(_HF_ARCHITECTURES))]
    fields.require("hidden_act", "silu", default="silu")
    fields.require("mlp_bias", False, default=False)
    fields.require("quantization_config", None, default=None)
    fields.require("partial_rotary_factor", 1.0, default=1.0)
    num_heads = fields.size("num_attention_heads", most=MAX_FEW)
    hidden_size = fields.size("hidden_size")
    head_dim = fields.size("head_dim", hidden_size // num_heads, most=MAX_FEW)
    num_layers = fields.size("num_hidden_layers", most=MAX_FEW)
    window, window_layers = _folder_window(fields, architecture, num_layers)
    return _checked(
        fields.path,
        ModelSpec(
            name=folder.resolve().name,
            path=folder,
            format="safetensors",
            architecture=architecture,
            vocab_size=fields.size("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.size("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=fields.size("num_key_value_heads", num_heads),
            head_dim=head_dim,
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=_folder_rope(fields, head_dim),
            max_position=fields.size("max_position_embeddings"),
            tied_embeddings=fields.flag("tie_word_embeddings", default=False),
            attention_bias=architecture == "qwen2" or fields.flag("attention_bias", default=False),
            output_bias=architecture != "qwen2" and fields.flag("attention_bias", default=False),
            qk_norm=architecture == "qwen3",
            sliding_window=window,
            window_layers=window_layers,
        ),
    )


def _folder_window(
    fields: Fields, architecture: str, num_layers: int
) -> tuple[int | None, tuple[bool, ...]]:
    """Window in tokens and which layers use it, by the rules of each family in transformers."""
    nowhere = (False,) * num_layers
    if architecture == "llama":
        return None, nowhere
    uses = architecture == "mistral" or fields.flag("use_sliding_window", default=False)
    window = fields.optional_size("sliding_window") if uses else None
    if window is None:
        return None, nowhere
    if architecture == "mistral":
        return window, (True,) * num_layers
    types = fields.list_of("layer_types", ("full_attention", "sliding_attention"))
    if types is None:
        first = fields.count("max_window_layers", num_layers)
        return window, tuple(layer >= first for layer in range(num_layers))
    if len(types) != num_layers:
        raise fields.wrong("layer_types", types, f"a list of num_hidden_layers={num_layers}")
    return window, tuple(kind == "sliding_attention" for kind in types)


def _folder_rope(fields: Fields, head_dim: int) -> RopeSpec:
    theta = fields.number("rope_theta", _DEFAULT_THETA)
    # transformers 5 writes rope_parameters (theta inside), earlier ones rope_scaling
    scaling = fields.section("rope_parameters") or fields.section("rope_scaling")
    if scaling is None:
        return RopeSpec(theta=theta)
    theta = scaling.number("rope_theta", theta)
    scaling.require("partial_rotary_factor", 1.0, default=1.0)
    field = "rope_type" if scaling.has("rope_type") else "type"
    kind = scaling.one_of(field, ("default", "linear", "llama3"), default="default")
    half = head_dim // 2
    if kind == "default":
        return RopeSpec(theta=theta)
    factor = scaling.number("factor")
    if kind == "linear":
        return _rope(theta, [factor] * half)
    original = scaling.size(
        "original_max_position_embeddings", fields.size("max_position_embeddings")
    )
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if low >= high:
        raise scaling.wrong("low_freq_factor", low, f"less than high_freq_factor={high}")
    wavelengths = [2 * math.pi * theta ** (2 * i / head_dim) for i in range(half)]
    return _rope(theta, [_llama3_divisor(factor, low, high, original / w) for w in wavelengths])


def _llama3_divisor(factor: float, low: float, high: float, turns: float) -> float:
    """Divide slow frequencies by `factor`, keep fast ones, blend between (Llama 3.1).

    `turns`: rotations of the frequency within the original context.
    """
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return 1.0 / (kept + (1.0 - kept) / factor)


def _rope(theta: float, divisors: list[float]) -> RopeSpec:
    if all(value == 1.0 for value in divisors):
        return RopeSpec(theta=theta)
    return RopeSpec(theta=theta, frequency_divisors=tuple(divisors))


def _checked(path: Path, spec: ModelSpec) -> ModelSpec:
    if spec.num_heads % spec.num_kv_heads:
        raise ModelFileError(
            f"{path}: KV heads must divide {spec.num_heads} heads (got {spec.num_kv_heads})"
        )
    if spec.head_dim % 2:
        raise ModelFileError(f"{path}: head dimension must be even (got {spec.head_dim})")
    _check_bytes(path, spec)
    return spec


def _check_bytes(path: Path, spec: ModelSpec) -> None:
    """Refuse sizes that exceed the files, before memory is allocated for them."""
    files = [spec.path] if spec.format == "gguf" else list(spec.path.glob("*.safetensors"))
    held = sum(file.stat().st_size for file in files)
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = 2 * (queries + keys) + 3 * spec.intermediate_size
    values = spec.hidden_size * (spec.vocab_size + spec.num_layers * layer)
    if files and values * _LEAST_BYTES_OF_VALUE > held:
        raise ModelFileError(
            f"{path}: a model of these sizes has {values} values, which do not fit {held} bytes"
        )
