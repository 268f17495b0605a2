"""Declaration of the `triton` backend. Needs neither torch nor Triton."""

from dataclasses import replace

from engine.model.attention.declaration import Declaration, Package

_FLOATS = frozenset({"float32", "bfloat16", "float16"})

_ANY_CARD = Declaration(
    name="triton",
    title="triton",
    device_types=frozenset({"cuda"}),
    dtypes=_FLOATS,
    kv_dtypes=_FLOATS,
    least_capability=(8, 0),
    max_head_dim=256,
    packages=(Package(name="triton", at_least=(3, 5)),),
)

# GPUs before Ada do not convert float8
DECLARATIONS = (
    _ANY_CARD,
    replace(
        _ANY_CARD,
        title="triton with float8 KV",
        kv_dtypes=frozenset({"float8_e4m3fn"}),
        least_capability=(8, 9),
    ),
)
