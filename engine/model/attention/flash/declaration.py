"""Declarations of the `flash` backend, by version of flash-attn. Tests and devices: ADR 0012."""

from engine.model.attention.declaration import Declaration, Package

_HALVES = frozenset({"bfloat16", "float16"})


def _declare(
    title: str,
    package: Package,
    capabilities: tuple[tuple[int, int], tuple[int, int] | None],
    *,
    page_multiple: int = 1,
    max_head_dim: int = 256,
) -> Declaration:
    return Declaration(
        name="flash",
        title=title,
        device_types=frozenset({"cuda"}),
        dtypes=_HALVES,
        kv_dtypes=None,  # one type for queries, K and V
        least_capability=capabilities[0],
        below_capability=capabilities[1],
        page_multiple=page_multiple,
        position_form="absolute",
        head_multiple=8,
        max_head_dim=max_head_dim,
        packages=(package,),
    )


_PACKAGE_4 = Package(name="flash-attn-4", at_least=(4,), below=(5,))

VERSION_2 = _declare(
    "flash-attn 2",
    Package(name="flash-attn", at_least=(2, 8), below=(3,)),
    ((8, 0), None),
    page_multiple=256,
)
VERSION_3 = _declare(
    "flash-attn 3",
    Package(name="flash-attn-3", at_least=(3,), below=(4,)),
    ((9, 0), (10, 0)),
)
VERSION_4 = _declare("flash-attn 4", _PACKAGE_4, ((10, 0), (12, 0)), max_head_dim=128)
VERSION_4_ON_HOPPER = _declare("flash-attn 4", _PACKAGE_4, ((9, 0), (10, 0)))

# on Hopper version 3 splits long contexts over the processors, version 4 does not
DECLARATIONS = (VERSION_3, VERSION_4, VERSION_4_ON_HOPPER, VERSION_2)
