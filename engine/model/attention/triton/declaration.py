"""What the `triton` backend can do. Needs neither torch nor Triton."""

from engine.model.attention.declaration import Declaration, Package

_FLOATS = frozenset({"float32", "bfloat16", "float16"})


def _declaration(kv_dtypes: frozenset[str], least: tuple[int, int]) -> Declaration:
    return Declaration(
        name="triton",
        title="triton",
        device_types=frozenset({"cuda"}),
        dtypes=_FLOATS,
        kv_dtypes=kv_dtypes,
        least_capability=least,
        max_head_dim=256,
        packages=(Package(name="triton", at_least=(3, 5)),),
    )


# a card before Ada converts no float8
DECLARATIONS = (
    _declaration(_FLOATS | {"float8_e4m3fn"}, (8, 9)),
    _declaration(_FLOATS, (8, 0)),
)
