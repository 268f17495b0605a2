"""Formats of weights and KV, and their bits. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A GGML type: its name here, and the values and bytes of a block."""

    name: str
    values: int
    num_bytes: int


# By GGML's numbers (ggml.h); blocks: ggml-common.h.
GGML_TYPES: Mapping[int, GgmlType] = {
    0: GgmlType("float32", 1, 4),
    1: GgmlType("float16", 1, 2),
    30: GgmlType("bfloat16", 1, 2),
    2: GgmlType("q4_0", 32, 18),
    3: GgmlType("q4_1", 32, 20),
    8: GgmlType("q8_0", 32, 34),
    12: GgmlType("q4_k", 256, 144),
    14: GgmlType("q6_k", 256, 210),
}
FLOAT_FORMATS = frozenset({"float32", "float16", "bfloat16"})

# Bits per weight, with scales and minima. 4-bit GPTQ and AWQ in groups of 128 have a half-precision
# scale and a 4-bit zero point, MXFP4 (OCP Microscaling 1.0) an 8-bit scale for 32 values.
WEIGHT_BITS: Mapping[str, float] = {
    **{kind.name: 8 * kind.num_bytes / kind.values for kind in GGML_TYPES.values()},
    "float8": 8.0,
    "int8": 8.0,
    "gptq": 4 + 20 / 128,
    "awq": 4 + 20 / 128,
    "mxfp4": 4 + 8 / 32,
}

# These leave embedding, head and vectors in 16 bits.
LAYERS_ONLY = frozenset({"float8", "int8", "gptq", "awq", "mxfp4"})
EXPERTS_ONLY = frozenset({"mxfp4"})  # and these leave attention in 16 bits, too

KV_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}

# Names of KV formats in the settings.
KV_ALIASES: Mapping[str, str] = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn"}
