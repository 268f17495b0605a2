"""Specification of a model, without its weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Format = Literal["gguf", "safetensors", "random"]
"""`random`: there is no file, weights are generated at load. For measurements and checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary positions. `frequency_divisors` (Llama 3, linear scaling) has head_dim // 2 values."""

    theta: float
    frequency_divisors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape of a Llama-family model. `sliding_window` is in tokens, None when attention is full.

    `window_layers[i]` says whether layer i uses the window. `attention_bias`: of q, k and v;
    `output_bias`: of o.
    """

    name: str
    path: Path
    format: Format
    architecture: str  # llama | qwen2 | qwen3 | mistral
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeSpec
    max_position: int
    tied_embeddings: bool
    attention_bias: bool
    qk_norm: bool
    sliding_window: int | None
    window_layers: tuple[bool, ...]
    output_bias: bool = False
