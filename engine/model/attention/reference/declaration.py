"""Declaration of the `torch` backend, which supports every model."""

from engine.model.attention.declaration import Declaration

_FLOATS = frozenset({"float32", "bfloat16", "float16"})

DECLARATIONS = (
    Declaration(
        name="torch",
        title="torch",
        device_types=frozenset({"cpu", "cuda"}),
        dtypes=_FLOATS,
        kv_dtypes=_FLOATS | {"float8_e4m3fn"},
    ),
)
