"""Memory of models on the native kernels: packed weights, KV blocks, a step's buffers. Pure."""

from collections.abc import Callable, Sequence

from engine.config import EngineConfig
from engine.planning.shape import DecoderShape

TILE_ROWS = 16
GROUP = 32  # columns with one scale
COLUMN_MULTIPLE = 64
BLOCK_TOKENS = 16
MAX_VECTORS = 16
MAX_HEAD_DIM = 256

_BYTES_PER_GROUP = {"Q4_1": 320, "Q4_0": 288, "Q8_0": 544, "BF16": 1024}  # all rows of a tile
_KV_BYTES = {"bfloat16": 2, "float32": 4}

FormatOf = Callable[[str], str]


def why_not_native(shape: DecoderShape, config: EngineConfig) -> str | None:
    """Return why the native kernels can't run a model; None when they can. Loads nothing."""
    group = shape.num_heads // shape.num_kv_heads
    limits = (
        ("device", config.device, config.device != "cuda", "cpu"),
        (
            "attention_backend",
            config.attention_backend,
            config.attention_backend in ("auto", "native"),
            "their own",
        ),
        ("dtype", config.dtype, config.dtype in ("auto", "bfloat16"), "bfloat16"),
        (
            "kv_cache_dtype",
            config.kv_cache_dtype,
            config.kv_cache_dtype not in ("float16", "fp8", "fp8_e4m3"),
            "bfloat16, float32 and int8",
        ),
        ("block_size", config.block_size, config.block_size == BLOCK_TOKENS, str(BLOCK_TOKENS)),
        (
            "head_dim",
            shape.head_dim,
            shape.head_dim % 16 == 0 and shape.head_dim <= MAX_HEAD_DIM,
            f"multiples of 16 up to {MAX_HEAD_DIM}",
        ),
        ("heads per KV head", group, group <= MAX_VECTORS, f"up to {MAX_VECTORS}"),
    )
    for name, value, holds, allowed in limits:
        if not holds:
            return f"{name}={value}: the kernels have {allowed}"
    return None


def packed_bytes(kind: str, rows: int, columns: int) -> int:
    """Return the size of a packed matrix, padded to whole tiles and 64 columns."""
    tiles = -(-rows // TILE_ROWS)
    groups = -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE // GROUP
    return tiles * groups * _BYTES_PER_GROUP[kind]


def native_weights_bytes(shape: DecoderShape, format_of: FormatOf) -> int:
    """Return the bytes of all packed weights (see engine.model.native_weights).

    `format_of` gives a matrix's packed format (Q4_1, Q4_0, Q8_0 or BF16) by its name in
    transformers, without `.weight`.
    """
    layers = sum(_layer_bytes(shape, layer, format_of) for layer in range(shape.num_layers))
    tables = ["model.embed_tokens"] if shape.tied_embeddings else ["model.embed_tokens", "lm_head"]
    return (
        layers
        + _padded_vector(shape.hidden_size)
        + sum(packed_bytes(format_of(name), shape.vocab_size, shape.hidden_size) for name in tables)
    )


def _layer_bytes(shape: DecoderShape, layer: int, format_of: FormatOf) -> int:
    hidden = shape.hidden_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    inner = -(-shape.intermediate_size // COLUMN_MULTIPLE) * COLUMN_MULTIPLE

    def joined(names: Sequence[str], rows: int, columns: int) -> int:
        # joined matrices have one format: different ones become Q8_0
        kinds = {format_of(f"model.layers.{layer}.{name}") for name in names}
        return packed_bytes(kinds.pop() if len(kinds) == 1 else "Q8_0", rows, columns)

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    size = joined(qkv, queries + 2 * keys, hidden)
    size += joined(("self_attn.o_proj",), hidden, queries)
    size += joined(("mlp.gate_proj", "mlp.up_proj"), 2 * inner, hidden)
    size += joined(("mlp.down_proj",), hidden, shape.intermediate_size)
    size += 2 * _padded_vector(hidden)
    if shape.qk_norm:
        size += 2 * _padded_vector(shape.head_dim)
    if shape.attention_bias:
        size += _bias_bytes(queries + 2 * keys)
    if shape.output_bias:
        size += _bias_bytes(hidden)
    return size


def _bias_bytes(rows: int) -> int:
    return 4 * (-(-rows // TILE_ROWS) * TILE_ROWS)


def _padded_vector(values: int) -> int:
    return 4 * (-(-values // COLUMN_MULTIPLE) * COLUMN_MULTIPLE)


def native_head_bytes(head_dim: int, kv_dtype: str) -> int:
    """Return the bytes of K, or of V, of one head in a block (kv_head_bytes of kernels.h)."""
    values = head_dim * BLOCK_TOKENS
    return values + 4 * BLOCK_TOKENS if kv_dtype == "int8" else values * _KV_BYTES[kv_dtype]


def native_kv_bytes_per_block(shape: DecoderShape, kv_dtype: str) -> int:
    """Return the bytes of a block of 16 tokens in all layers."""
    heads = shape.num_layers * 2 * shape.num_kv_heads
    return heads * native_head_bytes(shape.head_dim, kv_dtype)


def native_activation_bytes(
    shape: DecoderShape, max_num_batched_tokens: int, max_num_seqs: int
) -> int:
    """Return the bytes that the largest step holds beyond weights and KV (see buffers.c)."""
    heads = shape.num_heads * shape.head_dim
    floats = shape.hidden_size + 2 * heads + 2 * shape.num_kv_heads * shape.head_dim
    rounded = shape.hidden_size + heads + shape.intermediate_size
    row = 4 * floats + rounded * 5 // 2  # two bytes, and three words per group of 32
    return max_num_batched_tokens * row + max_num_seqs * 4 * shape.vocab_size
