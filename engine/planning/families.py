"""Layers of each family of models by its config.json, as `transformers` 5 builds them. Pure.

Sources: the modelling files of `transformers` 5.24; `tests/planning/test_configs.py` compares.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import ModelFileError
from engine.files.fields import MAX_FEW, MAX_SIZE, Fields
from engine.planning.layers import LayerShape

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_UNKNOWN_PARTS = (*_EXPERTS, "kv_lora_rank", "ssm_state_size", "linear_num_key_heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a family adds to a Llama.

    `norms`: of hidden_size values, per layer. `bias`: of attention, on q, k and v or on o, too;
    `flag`: on all where `attention_bias` says so. `qk_norm`: over a head or over all heads.
    `windows`: which layers have one. `expert_size`: the field of an expert's inner size; `shared`:
    whether there are shared experts. `defaults`: of fields that published configs leave out.
    """

    norms: int = 2
    bias: str = "flag"  # flag | qkv | qkvo
    qk_norm: str = ""  # "" | head | whole
    windows: str = ""  # "" | all | alternate | pattern | qwen | qwen_moe
    expert_size: str = ""
    shared: bool = False
    has_sinks: bool = False
    tied: bool = False
    defaults: Mapping[str, int] = field(default_factory=dict)


_LLAMA = Family(
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    }
)
_QWEN2 = Family(bias="qkv", windows="qwen")
_MLA = Family(expert_size="moe_intermediate_size", shared=True)
_GEMMA3 = Family(
    norms=4,
    qk_norm="head",
    windows="pattern",
    tied=True,
    defaults={
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(windows="all"),
    "qwen2": _QWEN2,
    "qwen3": Family(qk_norm="head", windows="qwen"),
    "smollm3": Family(),
    "granite": Family(),
    "phi3": Family(windows="all"),
    "olmo2": Family(qk_norm="whole"),
    "gemma": Family(tied=True),
    "gemma2": Family(norms=4, windows="alternate", tied=True),
    "gemma3_text": _GEMMA3,
    "mixtral": Family(windows="all", expert_size="intermediate_size"),
    "qwen2_moe": Family(
        bias="qkv", windows="qwen_moe", expert_size="moe_intermediate_size", shared=True
    ),
    "qwen3_moe": Family(qk_norm="head", windows="qwen", expert_size="moe_intermediate_size"),
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "gpt_oss": Family(
        bias="qkvo", windows="alternate", expert_size="intermediate_size", has_sinks=True
    ),
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
}
LLAMA_LIKE = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Families whose dense models this server runs."""

# The family of the text in a config that has images, where the config does not say.
_TEXT_OF = {
    "gemma3": "gemma3_text",
    "idefics3": "llama",
    "llava": "llama",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "smolvlm": "llama",
}


class TextFields:
    """Fields of a language model: those of its section, or of the file; then its defaults."""

    def __init__(self, file: Fields) -> None:
        section = file.section("text_config")
        self.file = file
        self.fields = file if section is None else section
        whole = file.word("model_type", "")
        own = self.fields.word("model_type", whole)
        self.name = _TEXT_OF.get(own, own)
        if section is not None and own == whole and not section.has("model_type"):
            self.name = _TEXT_OF.get(whole, "llama")
        self.family = FAMILIES.get(self.name)
        is_partial = section is not None and self.family is not None
        self._defaults = self.family.defaults if is_partial and self.family else {}

    def size(self, name: str, *, most: int = MAX_SIZE) -> int:
        """Return a size that must be there, or have a default."""
        if name in self._defaults:
            return self.fields.size(name, self._defaults[name], most=most)
        return self.fields.size(name, most=most)

    def size_or(self, name: str, default: int) -> int:
        """Return a size that may be absent."""
        return self.fields.size(name, self._defaults.get(name, default))

    def window(self) -> int | None:
        """Return the tokens of a window; None when there is none."""
        return self.fields.count("sliding_window", self._defaults.get("sliding_window", 0)) or None

    @property
    def is_tied(self) -> bool:
        """Whether the head is the embedding. Older files say so in either place."""
        family_tied = self.family is not None and self.family.tied
        places = [each for each in (self.fields, self.file) if each.has("tie_word_embeddings")]
        return any(each.flag("tie_word_embeddings", default=False) for each in places) or (
            family_tied and not places
        )


def family_of(text: TextFields) -> Family:
    """Return the family; one that is not known here counts as a Llama.

    Raises:
        ModelFileError: it has parts that a Llama does not have, such as experts.
    """
    family = Family() if text.family is None else text.family
    unknown = _UNKNOWN_PARTS if text.family is None else _EXPERTS
    for name in () if family.expert_size else unknown:
        if text.fields.count(name, 0):
            known = ", ".join(sorted(each for each, has in FAMILIES.items() if has.expert_size))
            raise ModelFileError(
                f"{text.fields.path}: model_type must be one of {known} with {name} "
                f"(got {text.name!r})"
            )
    return family


def layers_of(text: TextFields) -> tuple[LayerShape, ...]:
    """Return the layers of a config.

    Raises:
        ModelFileError: names the field, its value and the allowed values.
    """
    family = family_of(text)
    windows = windows_of(text)
    return tuple(_layer(text, family, index, window) for index, window in enumerate(windows))


def windows_of(text: TextFields) -> tuple[int | None, ...]:
    """Return each layer's window in tokens.

    Raises:
        ModelFileError: a layer has another kind of attention.
    """
    family, fields = family_of(text), text.fields
    count = text.size("num_hidden_layers", most=MAX_FEW)
    window = text.window()
    kinds = fields.list_of("layer_types", (_FULL, _SLIDING))
    if kinds is not None and len(kinds) != count:
        raise fields.wrong("layer_types", kinds, f"a list of num_hidden_layers={count}")
    is_qwen = family.windows.startswith("qwen")
    if window is None or not fields.flag("use_sliding_window", default=not is_qwen):
        return (None,) * count
    if kinds is not None:
        return tuple(window if kind == _SLIDING else None for kind in kinds)
    if not family.windows:
        return (None,) * count
    return tuple(window if _slides(family, fields, layer) else None for layer in range(count))


def _slides(family: Family, fields: Fields, layer: int) -> bool:
    if family.windows == "alternate":
        return layer % 2 == 0
    if family.windows == "pattern":
        return (layer + 1) % fields.size("sliding_window_pattern", 6) != 0
    if family.windows == "qwen_moe":
        return layer % 2 == 0 and layer < fields.count("max_window_layers", 28)
    if family.windows == "qwen" and not family.expert_size:
        return layer >= fields.count("max_window_layers", 28)
    return True


def _layer(text: TextFields, family: Family, index: int, window: int | None) -> LayerShape:
    hidden = text.size("hidden_size")
    if text.fields.has("kv_lora_rank"):
        attention, vectors, heads, values = _latent(text, hidden)
    else:
        attention, vectors, heads, values = _grouped(text, family, hidden)
    has_experts = family.expert_size and _is_sparse(text.fields, index)
    mlp, more = _experts(text, family, hidden) if has_experts else _dense(text, hidden)
    return LayerShape(
        matrices=(*attention, *mlp),
        vector_values=family.norms * hidden + vectors + more,
        kv_heads=heads,
        kv_head_values=values,
        window=window,
    )


_Matrices = tuple[tuple[int, int, int], ...]


def heads_of(text: TextFields) -> tuple[int, int, int]:
    """Return query heads, KV heads and values of a head.

    Raises:
        ModelFileError: KV heads do not divide the heads.
    """
    heads = text.size("num_attention_heads")
    kv_heads = text.size_or("num_key_value_heads", heads)
    if heads % kv_heads:
        raise text.fields.wrong("num_key_value_heads", kv_heads, f"a divisor of {heads} heads")
    return heads, kv_heads, text.size_or("head_dim", text.size("hidden_size") // heads)


def _grouped(text: TextFields, family: Family, hidden: int) -> tuple[_Matrices, int, int, int]:
    heads, kv_heads, head_dim = heads_of(text)
    queries, keys = heads * head_dim, kv_heads * head_dim
    bias = family.bias
    if bias == "flag":
        bias = "qkvo" if text.fields.flag("attention_bias", default=False) else ""
    vectors = (queries + 2 * keys) * bias.startswith("qkv") + hidden * (bias == "qkvo")
    vectors += {"": 0, "head": 2 * head_dim, "whole": queries + keys}[family.qk_norm]
    vectors += heads * family.has_sinks
    matrices = ((1, queries, hidden), (2, keys, hidden), (1, hidden, queries))
    return matrices, vectors, kv_heads, 2 * head_dim


def _latent(text: TextFields, hidden: int) -> tuple[_Matrices, int, int, int]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): K and V as one latent."""
    fields, heads = text.fields, text.size("num_attention_heads")
    rank, rope = fields.size("kv_lora_rank"), fields.size("qk_rope_head_dim")
    plain, value = fields.size("qk_nope_head_dim"), fields.size("v_head_dim")
    query_rank = fields.optional_size("q_lora_rank")
    queries: _Matrices = ((1, heads * (plain + rope), hidden),)
    if query_rank:
        queries = ((1, query_rank, hidden), (1, heads * (plain + rope), query_rank))
    matrices = (
        *queries,
        (1, rank + rope, hidden),
        (1, heads * (plain + value), rank),
        (1, hidden, heads * value),
    )
    vectors = rank + (query_rank or 0)
    if fields.flag("attention_bias", default=False):
        vectors += (query_rank or 0) + rank + rope + hidden
    return matrices, vectors, 1, rank + rope


def _dense(text: TextFields, hidden: int) -> tuple[_Matrices, int]:
    inner = text.size("intermediate_size")
    vectors = 2 * inner + hidden if text.fields.flag("mlp_bias", default=False) else 0
    return ((2, inner, hidden), (1, hidden, inner)), vectors


def _is_sparse(fields: Fields, layer: int) -> bool:
    step = fields.size("decoder_sparse_step", 1)
    return (
        layer >= fields.count("first_k_dense_replace", 0)
        and layer not in fields.counts("mlp_only_layers")
        and (layer + 1) % step == 0
    )


def experts_of(text: TextFields) -> int:
    """Return the number of experts of a layer; 0 when it is dense."""
    named = [name for name in _EXPERTS if text.fields.has(name)]
    return text.fields.count(named[0], 0) if named else 0


def shared_size(text: TextFields) -> int:
    """Return the inner size of all shared experts together."""
    family, fields = family_of(text), text.fields
    if not family.shared:
        return 0
    one = fields.count("n_shared_experts", 0) * fields.count(family.expert_size, 0)
    return fields.count("shared_expert_intermediate_size", one)


def _experts(text: TextFields, family: Family, hidden: int) -> tuple[_Matrices, int]:
    count, inner = experts_of(text), text.size(family.expert_size)
    if not count:
        return _dense(text, hidden)
    matrices: _Matrices = ((1, count, hidden), (2 * count, inner, hidden), (count, hidden, inner))
    vectors = 0
    if family.has_sinks:  # gpt-oss: router and experts have biases
        vectors = count * (1 + 2 * inner + hidden)
    shared = shared_size(text)
    if shared:
        matrices += ((2, shared, hidden), (1, hidden, shared))
        if text.fields.has("shared_expert_intermediate_size"):
            matrices += ((1, 1, hidden),)  # the gate of the shared expert
    return matrices, vectors


def inner_size(text: TextFields) -> int:
    """Return the values of a token inside the widest MLP: dense, or its experts together."""
    family, fields = family_of(text), text.fields
    dense = text.size("intermediate_size")
    if not family.expert_size or not experts_of(text):
        return dense
    chosen = fields.size("num_experts_per_tok", 1) * text.size(family.expert_size)
    routed = chosen + shared_size(text)
    has_dense = fields.count("first_k_dense_replace", 0) or fields.counts("mlp_only_layers")
    return max(routed, dense) if has_dense else routed
