"""Model shape for size calculations; a ModelSpec implements it, too. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class DecoderShape(Protocol):
    """A Llama-family decoder: grouped queries, a gated MLP, norms without bias."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        ...

    @property
    def hidden_size(self) -> int:
        """Values of a token between layers."""
        ...

    @property
    def intermediate_size(self) -> int:
        """Values of a token inside the MLP."""
        ...

    @property
    def num_layers(self) -> int:
        """Layers."""
        ...

    @property
    def num_heads(self) -> int:
        """Query heads."""
        ...

    @property
    def num_kv_heads(self) -> int:
        """Heads of K and V."""
        ...

    @property
    def head_dim(self) -> int:
        """Values of a head."""
        ...

    @property
    def max_position(self) -> int:
        """Longest context in tokens."""
        ...

    @property
    def tied_embeddings(self) -> bool:
        """Whether the head is the embedding."""
        ...

    @property
    def attention_bias(self) -> bool:
        """Whether q, k and v have biases."""
        ...

    @property
    def output_bias(self) -> bool:
        """Whether o has a bias."""
        ...

    @property
    def qk_norm(self) -> bool:
        """Whether q and k are normed."""
        ...

    @property
    def sliding_window(self) -> int | None:
        """Tokens that windowed layers see."""
        ...

    @property
    def window_layers(self) -> Sequence[bool]:
        """Which layers see the window only."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageShape:
    """Implements DecoderShape for models that are planned, not served."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    tied_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    window_layers: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixShape:
    """One weight matrix by its name in transformers; `rows` are outputs."""

    name: str
    rows: int
    columns: int


def matrices(shape: DecoderShape) -> Iterator[MatrixShape]:
    """All weight matrices, the embedding first, the head last where it is one of its own."""
    yield MatrixShape(name="model.embed_tokens", rows=shape.vocab_size, columns=shape.hidden_size)
    for layer in range(shape.num_layers):
        for name, rows, columns in layer_matrices(shape):
            yield MatrixShape(name=f"model.layers.{layer}.{name}", rows=rows, columns=columns)
    if not shape.tied_embeddings:
        yield MatrixShape(name="lm_head", rows=shape.vocab_size, columns=shape.hidden_size)


def layer_matrices(shape: DecoderShape) -> tuple[tuple[str, int, int], ...]:
    """Name, rows and columns of each matrix of a layer."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return (
        ("self_attn.q_proj", queries, hidden),
        ("self_attn.k_proj", keys, hidden),
        ("self_attn.v_proj", keys, hidden),
        ("self_attn.o_proj", hidden, queries),
        ("mlp.gate_proj", inner, hidden),
        ("mlp.up_proj", inner, hidden),
        ("mlp.down_proj", hidden, inner),
    )


def vector_values(shape: DecoderShape) -> int:
    """Values of all norms and biases."""
    layer = 2 * shape.hidden_size
    if shape.attention_bias:
        layer += (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    if shape.output_bias:
        layer += shape.hidden_size
    if shape.qk_norm:
        layer += 2 * shape.head_dim
    return shape.num_layers * layer + shape.hidden_size


def num_parameters(shape: DecoderShape) -> int:
    """All weights of the decoder."""
    return sum(each.rows * each.columns for each in matrices(shape)) + vector_values(shape)


def kv_values_per_token(shape: DecoderShape) -> int:
    """Values of K and V of one token in all layers: grouped queries share theirs."""
    return shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim
