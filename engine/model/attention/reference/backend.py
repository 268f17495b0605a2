"""Builds the `torch` backend. Loop thread only."""

from engine.files.model_spec import ModelSpec
from engine.model.attention.declaration import Declaration
from engine.model.attention.gather import GatherAttention
from engine.model.attention.torch_paged import attend_with_sdpa
from engine.model.layers import Arithmetic


def build(spec: ModelSpec, arithmetic: Arithmetic, declaration: Declaration) -> GatherAttention:
    """See engine.model.attention.registry.BackendModule."""
    return GatherAttention(declaration.name, attend_with_sdpa, spec, arithmetic)
