"""Shapes of models whose weights are drawn and written nowhere, and what a step of them takes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.files.model_spec import ModelSpec, RopeSpec

ShapeName = Literal["7b", "1b", "tiny"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model, and how much of it is measured. Sizes in tokens.

    `long`: the session that is resumed, and the prompt that is prefilled. `context`: what each
    stream of a decode batch has behind it. `step`: rows of a step.
    """

    spec: ModelSpec
    long: int
    context: int
    step: int
    decode_steps: int
    repeats: int


def shape_of(name: ShapeName) -> Shape:
    """Return a shape by its name. `7b` is that of Llama and Mistral models with grouped queries."""
    match name:
        case "7b":
            spec = _spec(name, hidden=4096, width=14336, layers=32, heads=(32, 8), vocab=32_768)
            return Shape(spec=spec, long=8192, context=1024, step=2048, decode_steps=32, repeats=3)
        case "1b":
            spec = _spec(name, hidden=2048, width=8192, layers=16, heads=(32, 8), vocab=128_256)
            return Shape(spec=spec, long=8192, context=1024, step=2048, decode_steps=32, repeats=3)
        case "tiny":
            spec = _spec(name, hidden=256, width=512, layers=2, heads=(4, 2), vocab=512)
            return Shape(spec=spec, long=256, context=48, step=256, decode_steps=4, repeats=2)


def matrix_parameters(spec: ModelSpec) -> int:
    """Count the weights that every token of a prompt is multiplied with: those of the layers."""
    attention = (2 * spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim * spec.hidden_size
    return spec.num_layers * (attention + 3 * spec.hidden_size * spec.intermediate_size)


def prefill_operations(spec: ModelSpec, tokens: int) -> float:
    """Floating-point operations of a prompt: of the matrices, and of the scores and sums of V.

    A token sees those up to itself. The head is computed for one token only, and left out.
    """
    scores = 2 * 2 * spec.num_layers * spec.num_heads * spec.head_dim * tokens * tokens / 2
    return 2.0 * matrix_parameters(spec) * tokens + scores


def decode_bytes(
    spec: ModelSpec, *, weight_bytes: int, kv_bytes_per_token: float, batch: int, context: int
) -> float:
    """Bytes that a step of `batch` streams must read: all matrices once, and each one's KV.

    `weight_bytes`: of one weight.
    """
    head = spec.vocab_size * spec.hidden_size
    return (matrix_parameters(spec) + head) * weight_bytes + batch * context * kv_bytes_per_token


def _spec(  # noqa: PLR0913 -- a shape is its sizes
    name: str, *, hidden: int, width: int, layers: int, heads: tuple[int, int], vocab: int
) -> ModelSpec:
    return ModelSpec(
        name=f"random-{name}",
        path=Path(f"random-{name}"),
        format="random",
        architecture="llama",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=width,
        num_layers=layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=hidden // heads[0],
        rms_norm_eps=1e-5,
        rope=RopeSpec(theta=500_000.0),
        max_position=32_768,
        tied_embeddings=False,
        attention_bias=False,
        qk_norm=False,
        sliding_window=None,
        window_layers=(False,) * layers,
    )
