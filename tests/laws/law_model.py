"""A tiny random Llama whose tokens are the same bits however its work is cut. For the laws.

Every sum runs in one fixed order, and `exp` is computed here, so that results depend on nothing
but their operands.
"""

import math
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own name for it
from torch import Tensor

from engine.files.model_spec import ModelSpec, RopeSpec
from engine.kv.tensors import PositionForm
from engine.model.attention.gather import GatherAttention
from engine.model.layers import Arithmetic, RotaryTable
from engine.model.llama import Llama
from engine.model.runner import LoadedModel, TorchRunner
from engine.model.weights.layers import LayerWeights, ResidentLayers
from engine.model.weights.load import ModelWeights

_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # few bits, so that its small multiples are exact
_LN2_LOW = math.log(2) - _LN2_HIGH
_LOWEST_EXPONENT = -700.0
_TAYLOR = [1 / math.factorial(power) for power in range(13, -1, -1)]


def fixed_sum(x: Tensor) -> Tensor:
    """Sum over the last dimension pairwise, padded with zeros to a power of two.

    Zeros at the end change no bit, so a padded row sums like a short one.
    """
    width = x.shape[-1]
    half = 1 << (width - 1).bit_length()
    x = F.pad(x, (0, half - width))
    while half > 1:
        half //= 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def fixed_exp(x: Tensor) -> Tensor:
    """Return e^x within a few units of the last place; x is at most 700, float64.

    x = k ln 2 + r, then Taylor's polynomial for r and k into the exponent's bits.
    """
    x = x.clamp(min=_LOWEST_EXPONENT)
    k = torch.floor(x * (1 / math.log(2)) + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    result = torch.full_like(r, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        result = result * r + coefficient
    return result * ((k.long() + 1023) << 52).view(torch.float64)


class FixedOrderOps:
    """Implements engine.model.layers.Ops in fixed order."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Ops."""
        result = fixed_sum(x[..., None, :] * weight)
        return result if bias is None else result + bias

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        mean = fixed_sum(x * x)[..., None] / x.shape[-1]
        return x / torch.sqrt(mean + eps) * weight

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """See Ops."""
        gate, up = gate_up.chunk(2, dim=-1)
        return gate / (1 + fixed_exp((-gate).clamp(max=-_LOWEST_EXPONENT))) * up

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        """See Ops."""
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        first, second = pairs[..., 0], pairs[..., 1]
        cosine, sine = rotation[..., 0], rotation[..., 1]
        turned = (first * cosine - second * sine, first * sine + second * cosine)
        return torch.stack(turned, dim=-1).flatten(-2)


def attend_in_fixed_order(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attend row by row; shapes as engine.model.attention.gather says.

    A row's result depends on its own visible context in its order, and on nothing else: what is
    masked adds exact zeros at the end of each sum.
    """
    heads, dim = queries.shape[2:]
    group = heads // keys.shape[2]
    keys = keys.repeat_interleave(group, 2).transpose(1, 2)  # [b, heads, T, dim]
    values = values.repeat_interleave(group, 2).transpose(1, 2)
    scaled = queries.transpose(1, 2) * dim**-0.5  # [b, heads, n, dim]
    scores = fixed_sum(scaled[:, :, :, None] * keys[:, :, None]) + mask[:, None]
    weights = fixed_exp(scores - scores.amax(-1, keepdim=True))
    weights = torch.where(mask[:, None] == 0, weights, 0.0)
    totals = fixed_sum(weights)[..., None]
    weighted = weights[..., None] * values[:, :, None]  # [b, heads, n, T, dim]
    return (fixed_sum(weighted.transpose(-1, -2)) / totals).transpose(1, 2)


_CPU = torch.device("cpu")


def law_spec(vocab_size: int = 256, max_position: int = 4096) -> ModelSpec:
    """Return the shape of the tiny model: powers of two, grouped queries, two layers."""
    return ModelSpec(
        name="law",
        path=Path("law"),
        format="safetensors",
        architecture="llama",
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        rms_norm_eps=1e-6,
        rope=RopeSpec(theta=10_000.0),
        max_position=max_position,
        tied_embeddings=False,
        attention_bias=False,
        qk_norm=False,
        sliding_window=None,
        window_layers=(False, False),
    )


def law_model(
    spec: ModelSpec | None = None,
    *,
    seed: int = 0,
    block_size: int = 16,
    position_form: PositionForm = "slot",
) -> LoadedModel:
    """Make the tiny model with random weights that depend on the seed only."""
    spec = spec or law_spec()
    arithmetic = Arithmetic(
        ops=FixedOrderOps(),
        table=RotaryTable(spec.rope, spec.head_dim, dtype=torch.float64, device=_CPU),
        dtype=torch.float64,
        device=_CPU,
    )
    attention = GatherAttention("law", attend_in_fixed_order, spec, arithmetic)
    return LoadedModel(
        llama=Llama(spec, random_weights(spec, seed, torch.float64), attention, arithmetic),
        kv_dtype=torch.float64,
        block_size=block_size,
        max_model_len=spec.max_position,
        fingerprint=f"law-{seed}-{position_form}",
        position_form=position_form,
    )


def law_runner(
    num_blocks: int,
    *,
    spec: ModelSpec | None = None,
    seed: int = 0,
    block_size: int = 16,
    position_form: PositionForm = "slot",
) -> TorchRunner:
    """Make a runner of the tiny model over a pool of its own."""
    model = law_model(spec, seed=seed, block_size=block_size, position_form=position_form)
    return model.runner(num_blocks)


def random_weights(spec: ModelSpec, seed: int, dtype: torch.dtype) -> ModelWeights:
    """Draw weights large enough that attention is sharp and a token's past shows in its logits."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        scale: float = 2.0 / columns**0.5
        values = torch.randn(rows, columns, generator=generator, dtype=torch.float64) * scale
        return values.to(dtype)

    hidden, width = spec.hidden_size, spec.head_dim
    ones = torch.ones(hidden, dtype=dtype)
    layers = tuple(
        LayerWeights(
            attention_norm=ones,
            qkv=matrix((spec.num_heads + 2 * spec.num_kv_heads) * width, hidden),
            qkv_bias=None,
            qk_norm=None,
            output=matrix(hidden, spec.num_heads * width),
            output_bias=None,
            mlp_norm=ones,
            gate_up=matrix(2 * spec.intermediate_size, hidden),
            down=matrix(hidden, spec.intermediate_size),
        )
        for _ in range(spec.num_layers)
    )
    embedding, head = matrix(spec.vocab_size, hidden), matrix(spec.vocab_size, hidden)
    return ModelWeights(embedding=embedding, layers=ResidentLayers(layers), norm=ones, head=head)
