"""The law model's weights over flash-attn, in each version that there is, on the CPU."""

import torch

from engine.files.model_spec import ModelSpec
from engine.model.attention.flash.adapters import make_adapter
from engine.model.attention.flash.backend import FlashAttention
from engine.model.attention.flash.declaration import (
    VERSION_2,
    VERSION_3,
    VERSION_4,
    VERSION_4_ON_HOPPER,
)
from engine.model.layers import Arithmetic, RotaryTable, TorchOps
from engine.model.llama import Llama
from engine.model.runner import LoadedModel
from tests.laws.law_model import law_spec, random_weights
from tests.model import flash_libraries

LIBRARIES = {
    "2": (VERSION_2, flash_libraries.Version2),
    "3": (VERSION_3, flash_libraries.Version3),
    "4": (VERSION_4, lambda: flash_libraries.Version4(hopper=False)),
    "4 on Hopper": (VERSION_4_ON_HOPPER, flash_libraries.Version4),
}


def flash_model(
    version: str, block_size: int, spec: ModelSpec | None = None
) -> tuple[LoadedModel, list[str]]:
    """The model in float64, and the calls that it makes of the library."""
    spec, device = spec or law_spec(), torch.device("cpu")
    declaration, make = LIBRARIES[version]
    library = make()
    table = RotaryTable(spec.rope, spec.head_dim, dtype=torch.float64, device=device)
    arithmetic = Arithmetic(ops=TorchOps(), table=table, dtype=torch.float64, device=device)
    adapter = make_adapter(declaration, flash_libraries.module(library))
    weights = random_weights(spec, 0, torch.float64)
    model = LoadedModel(
        llama=Llama(spec, weights, FlashAttention(spec, adapter), arithmetic),
        kv_dtype=torch.float64,
        block_size=block_size,
        max_model_len=spec.max_position,
        fingerprint="flash",
        position_form="absolute",
    )
    return model, library.calls
