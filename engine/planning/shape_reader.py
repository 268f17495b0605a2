"""Reads a model's shape for a plan, from a GGUF header or a config.json, without weights.

More lenient than `spec_reader`: a plan needs sizes only, so families that are not served can be
planned, and missing fields of a nested config have the defaults of `transformers`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelFileError
from engine.files.fields import Fields, read_config_json
from engine.files.gguf_header import GgufHeader, read_gguf_header
from engine.files.gguf_names import gguf_name
from engine.files.model_spec import ModelSpec
from engine.files.spec_reader import read_config_spec, read_spec
from engine.planning.families import (
    LLAMA_LIKE,
    TextFields,
    family_of,
    heads_of,
    inner_size,
    layers_of,
    windows_of,
)
from engine.planning.formats import FLOAT_FORMATS, GGML_TYPES
from engine.planning.layers import LayerShape, kv_values, layer_values
from engine.planning.shape import (
    DecoderShape,
    LanguageShape,
    MatrixShape,
    kv_values_per_token,
    matrices,
    num_parameters,
)
from engine.planning.vision import VisionShape, read_vision


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model's sizes. `stored` has the format of each matrix, if the file names it.

    `layers` is empty where the language model is a Llama by its sizes. `refusal` says why this
    server can't run the model, empty if it can. `stored_format` is the format of the weights by the
    config; `quantized` is the config's name of the quantisation, empty if there is none.
    """

    name: str
    language: DecoderShape
    family: str = "llama"
    layers: tuple[LayerShape, ...] = ()
    refusal: str = ""
    vision: VisionShape | None = None
    stored: Mapping[str, str] | None = None
    stored_format: str = "float16"
    quantized: str = ""

    @property
    def num_parameters(self) -> int:
        """All weights of the language model."""
        shape = self.language
        if not self.layers:
            return num_parameters(shape)
        return _values(shape, self.layers)

    @property
    def kv_values_per_token(self) -> int:
        """Values of K and V of one token in all layers."""
        return kv_values(self.layers) if self.layers else kv_values_per_token(self.language)

    @property
    def kv_values_beyond_window(self) -> int:
        """Values that each further token of a context adds, once it is longer than the window."""
        if self.layers:
            return kv_values(self.layers, windowed=False)
        full = list(self.language.window_layers).count(False)
        return self.kv_values_per_token // self.language.num_layers * full


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
        name=spec.name,
        family=spec.architecture,
        language=spec,
        stored=stored,
        stored_format=kept[0] if kept else "float16",
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
    file = read_config_json(path)
    text, vision = TextFields(file), file.section("vision_config")
    layers = layers_of(text)
    served, refusal = _served(path)
    language = served or _language(text, layers)
    is_plain = text.name in LLAMA_LIKE and vision is None
    is_plain = is_plain and num_parameters(language) == _values(language, layers)
    return PlannedModel(
        name=path.resolve().parent.name if path.name == "config.json" else path.stem,
        family=text.name,
        language=language,
        layers=() if served or is_plain else layers,
        vision=None if vision is None else read_vision(file, vision, language.hidden_size),
        refusal=refusal,
        stored_format=_stored_format(file, file.section("text_config")),
        quantized=_quantized(file, file.section("text_config")),
    )


def _values(shape: DecoderShape, layers: Sequence[LayerShape]) -> int:
    tables = (1 if shape.tied_embeddings else 2) * shape.vocab_size * shape.hidden_size
    return tables + layer_values(layers) + shape.hidden_size


def _served(path: Path) -> tuple[ModelSpec | None, str]:
    """The model as the server reads it, or why it can't run it."""
    try:
        return read_config_spec(path), ""
    except ModelFileError as error:
        return None, str(error).removeprefix(f"{path}: ")


def _language(text: TextFields, layers: Sequence[LayerShape]) -> LanguageShape:
    heads, kv_heads, head_dim = heads_of(text)
    fields, family = text.fields, family_of(text)
    windows = windows_of(text)
    if fields.has("kv_lora_rank"):
        head_dim = fields.size("qk_nope_head_dim") + fields.size("qk_rope_head_dim")
    return LanguageShape(
        vocab_size=text.size("vocab_size"),
        hidden_size=text.size("hidden_size"),
        intermediate_size=inner_size(text),
        num_layers=len(layers),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=text.size("max_position_embeddings"),
        tied_embeddings=text.is_tied,
        attention_bias=family.bias != "flag" or fields.flag("attention_bias", default=False),
        output_bias=family.bias == "flag" and fields.flag("attention_bias", default=False),
        qk_norm=family.qk_norm == "head",
        sliding_window=max((each for each in windows if each), default=None),
        window_layers=tuple(each is not None for each in windows),
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
