"""A tiny random Llama whose tokens are the same bits however its work is cut. For tests of laws.

float64, every sum in one fixed order: batch, chunking and where KV lies change no bit, as long
as the partition into blocks is the same.
"""

from pathlib import Path

import torch
from torch import Tensor

from engine.files.model_spec import ModelSpec, RopeSpec
from engine.memory.kv_store import PositionForm
from engine.model.attention.gather import GatherAttention
from engine.model.attention.law import attend_in_fixed_order
from engine.model.fixed_order import FixedOrderOps
from engine.model.layers import Arithmetic, RotaryTable
from engine.model.llama import Llama
from engine.model.runner import LoadedModel, TorchRunner
from engine.model.weights.layers import LayerWeights, ResidentLayers
from engine.model.weights.load import ModelWeights

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
