"""Memory of weights where torch runs a model: dense or quantised, resident or offloaded. Pure."""

from collections.abc import Callable, Iterator

from engine.planning.formats import FLOAT_FORMATS, GGML_TYPES
from engine.planning.offload_sizes import BUFFERS, aligned, offloaded_layers
from engine.planning.shape import DecoderShape, layer_matrices

FormatOf = Callable[[str], str]
_SIZES = {kind.name: kind for kind in GGML_TYPES.values()}

# joined matrices: they stay quantised together, or not at all
_JOINED = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)


def torch_weights_bytes(
    shape: DecoderShape, value_bytes: int, format_of: FormatOf, offloaded: int = 0
) -> int:
    """Return the bytes of all weights on the device (engine.model.weights).

    `format_of` returns a matrix's format by its name in transformers without `.weight`: a GGML
    type, or any floating type for the type of the computation, of `value_bytes`. The weights of
    `offloaded` layers stay in main memory; the device has two buffers for them.
    """
    in_main = offloaded_layers(shape.num_layers, offloaded) if offloaded else frozenset[int]()
    layers = {
        layer: list(_layer_tensors(shape, layer, value_bytes, format_of))
        for layer in range(shape.num_layers)
    }
    resident = sum(sum(tensors) for layer, tensors in layers.items() if layer not in in_main)
    buffer = max((sum(map(aligned, layers[layer])) for layer in in_main), default=0)
    tables = ["model.embed_tokens"] if shape.tied_embeddings else ["model.embed_tokens", "lm_head"]
    outside = sum(
        sum(_kept([(name, shape.vocab_size, shape.hidden_size)], value_bytes, format_of))
        for name in tables
    )
    return resident + BUFFERS * buffer + outside + shape.hidden_size * value_bytes


def _layer_tensors(
    shape: DecoderShape, layer: int, value_bytes: int, format_of: FormatOf
) -> Iterator[int]:
    sizes = {name: (rows, columns) for name, rows, columns in layer_matrices(shape)}
    for names in _JOINED:
        parts = [(f"model.layers.{layer}.{name}", *sizes[name]) for name in names]
        yield from _kept(parts, value_bytes, format_of)
    heads = shape.num_heads + shape.num_kv_heads
    yield from [shape.hidden_size * value_bytes] * 2
    if shape.attention_bias:
        yield (heads + shape.num_kv_heads) * shape.head_dim * value_bytes
    if shape.output_bias:
        yield shape.hidden_size * value_bytes
    if shape.qk_norm:
        yield heads * shape.head_dim * value_bytes


def _kept(
    parts: list[tuple[str, int, int]], value_bytes: int, format_of: FormatOf
) -> Iterator[int]:
    kinds = [format_of(name) for name, _, _ in parts]
    if FLOAT_FORMATS & set(kinds):
        yield sum(rows * columns for _, rows, columns in parts) * value_bytes
        return
    for kind, (_, rows, columns) in zip(kinds, parts, strict=True):
        yield rows * columns // _SIZES[kind].values * _SIZES[kind].num_bytes
