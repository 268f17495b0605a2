"""Reads a model's shape for a plan, from a GGUF header or a config.json, without weights.

More lenient than `spec_reader`: a plan needs sizes only, so families that are not served can be
planned, and missing fields of a nested config have the defaults of `transformers`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelFileError
from engine.files.fields import Fields, read_config_json
from engine.files.gguf_header import GgufHeader, read_gguf_header
from engine.files.gguf_names import gguf_name
from engine.files.spec_reader import read_spec
from engine.planning.formats import FLOAT_FORMATS, GGML_TYPES
from engine.planning.shape import DecoderShape, LanguageShape, MatrixShape, matrices
from engine.planning.vision import VisionShape

# Defaults of transformers 5 for missing fields (LlamaConfig).
_LLAMA: Mapping[str, int] = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
_TOWERS = ("clip_vision_model", "siglip_vision_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model's sizes. `stored` has the format of each matrix, if the file names it.

    `stored_format` is the format of the weights by the config; `quantized` is the config's name of
    the quantisation, empty if there is none.
    """

    name: str
    language: DecoderShape
    vision: VisionShape | None = None
    stored: Mapping[str, str] | None = None
    stored_format: str = "float16"
    quantized: str = ""


def read_planned_model(path: Path) -> PlannedModel:
    """Read a `.gguf` file, a config.json, or a folder that has one.

    Raises:
        ModelFileError: names the field, its value and the allowed values.
    """
    if path.suffix == ".gguf" and path.is_file():
        return _of_gguf(path)
    if path.is_dir() or path.suffix == ".json":
        return _of_config(path / "config.json" if path.is_dir() else path)
    raise ModelFileError(
        f"model must be a .gguf file, a config.json, or a folder with one (got {str(path)!r})"
    )


def _of_gguf(path: Path) -> PlannedModel:
    spec, header = read_spec(path), read_gguf_header(path)
    stored = {each.name: _format_in(header, each) for each in matrices(spec)}
    kept = sorted(set(stored.values()) - FLOAT_FORMATS)
    return PlannedModel(
        name=spec.name, language=spec, stored=stored, stored_format=kept[0] if kept else "float16"
    )


def _format_in(header: GgufHeader, matrix: MatrixShape) -> str:
    name = gguf_name(f"{matrix.name}.weight")
    info = header.tensors.get(name)
    if info is None:
        raise ModelFileError(f"{header.path}: tensor {name!r} is missing")
    if info.ggml_type not in GGML_TYPES:
        raise ModelFileError(
            f"{header.path}: GGML type of tensor {name!r} must be one of "
            f"{sorted(GGML_TYPES)} (got {info.ggml_type})"
        )
    return GGML_TYPES[info.ggml_type].name


def _of_config(path: Path) -> PlannedModel:
    fields = read_config_json(path)
    text = fields.section("text_config")
    language = _language(text or fields, _LLAMA if text is not None else {})
    vision = fields.section("vision_config")
    return PlannedModel(
        name=path.resolve().parent.name,
        language=language,
        vision=None if vision is None else _vision(fields, vision, language.hidden_size),
        stored_format=_stored_format(fields, text),
        quantized=_quantized(fields, text),
    )


def _language(fields: Fields, defaults: Mapping[str, int]) -> LanguageShape:
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        if fields.has(name):
            raise fields.wrong(name, fields.size(name), "absent, as only dense models are planned")

    def size(name: str) -> int:
        return fields.size(name, defaults[name]) if name in defaults else fields.size(name)

    heads, hidden = size("num_attention_heads"), size("hidden_size")
    layers = size("num_hidden_layers")
    family = fields.word("model_type", "")
    uses_window = family == "mistral" or fields.flag("use_sliding_window", default=False)
    window = fields.optional_size("sliding_window") if uses_window else None
    first = fields.count("max_window_layers", 0) if family.startswith("qwen") else 0
    kv_heads = fields.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", kv_heads, f"a divisor of {heads} heads")
    return LanguageShape(
        vocab_size=size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=size("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=fields.size("head_dim", hidden // heads),
        max_position=size("max_position_embeddings"),
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        attention_bias=family == "qwen2" or fields.flag("attention_bias", default=False),
        qk_norm=family == "qwen3",
        sliding_window=window,
        window_layers=tuple(window is not None and layer >= first for layer in range(layers)),
    )


def _vision(fields: Fields, vision: Fields, output_size: int) -> VisionShape:
    tower = vision.one_of("model_type", _TOWERS)
    has_class_token = tower == "clip_vision_model"
    strategy = fields.one_of(
        "vision_feature_select_strategy", ("default", "full"), default="default"
    )
    image, patch = vision.size("image_size"), vision.size("patch_size")
    if patch > image:
        raise vision.wrong("patch_size", patch, f"at most image_size={image}")
    return VisionShape(
        hidden_size=vision.size("hidden_size"),
        intermediate_size=vision.size("intermediate_size"),
        num_layers=vision.size("num_hidden_layers"),
        num_heads=vision.size("num_attention_heads"),
        image_size=image,
        patch_size=patch,
        output_size=output_size,
        has_class_token=has_class_token,
        keeps_class_token=has_class_token and strategy == "full",
    )


def _quantized(fields: Fields, text: Fields | None) -> str:
    for section in (fields, text):
        found = None if section is None else section.section("quantization_config")
        if found is not None:
            return found.word("quant_method", "unknown")
    return ""


def _stored_format(fields: Fields, text: Fields | None) -> str:
    for section in (fields, text):
        for name in ("dtype", "torch_dtype"):
            if section is not None and section.has(name):
                given = section.word(name, "").removeprefix("torch.")
                return given if given in FLOAT_FORMATS else "float16"
    return "float16"
