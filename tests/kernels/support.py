"""One kernel at a time through ctypes, and the references in float64."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_float, c_int, c_int32, c_size_t, c_void_p

import numpy as np

from engine.model.kernels.library import (
    ISAS,
    Format,
    Linear,
    load_library,
)
from engine.model.kernels.matrix import Matrix, quantize, round_to_bfloat
from engine.planning.native_sizes import GROUP


class Activations(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("values", "scales", "offsets", "sums")),
        ("columns", c_int32),
        ("is_bfloat", c_int32),
    )


class KvLayer(Structure):
    _fields_ = (
        ("pool", c_void_p),
        ("block_bytes", c_size_t),
        ("layer_bytes", c_size_t),
        *((name, c_int32) for name in ("kv_heads", "group", "head_dim")),
        *((name, c_int32) for name in ("window", "is_float", "is_int8")),
        ("rotation", c_void_p),
    )


class AttentionTile(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("entries", "queries", "positions")),
        *((name, c_void_p) for name in ("row_entries", "row_slots")),
        ("query_stride", c_size_t),
        *((name, c_int32) for name in ("rows", "first_kv_head", "end_kv_head", "streaming")),
    )


LINEAR = CFUNCTYPE(
    None,
    POINTER(Linear),
    c_int,
    c_int,
    POINTER(Activations),
    c_int,
    c_int,
    c_void_p,
    c_size_t,
    c_int,
)


class Kernels(Structure):
    _fields_ = (
        (
            "normalize",
            CFUNCTYPE(None, c_void_p, c_void_p, c_int, c_float, POINTER(Activations), c_int),
        ),
        ("quantize", CFUNCTYPE(None, c_void_p, POINTER(Activations), c_int)),
        ("swiglu", CFUNCTYPE(None, c_void_p, c_int, c_int, c_int, POINTER(Activations))),
        ("linear", LINEAR * len(Format)),
        ("prepare_queries", CFUNCTYPE(None, c_void_p, c_int, c_int, c_void_p, c_float, c_float)),
        (
            "write_kv",
            CFUNCTYPE(None, POINTER(KvLayer), c_int, c_int, c_void_p, c_void_p, c_void_p, c_float),
        ),
        (
            "attend",
            CFUNCTYPE(None, POINTER(KvLayer), POINTER(AttentionTile), c_int, c_int, c_void_p),
        ),
        (
            "attend_int8",
            CFUNCTYPE(None, POINTER(KvLayer), POINTER(AttentionTile), c_int, c_int, c_void_p),
        ),
        ("merge", CFUNCTYPE(None, c_void_p, c_void_p, c_int, c_int)),
        ("finish", CFUNCTYPE(None, c_void_p, c_int, c_int, POINTER(c_void_p))),
        ("argmax", CFUNCTYPE(c_int32, c_void_p, c_int)),
        ("unpack_row", CFUNCTYPE(None, POINTER(Linear), c_int, c_void_p)),
    )


def kernels_of(path):
    """Tables of all instruction sets of this processor, by name."""
    library = load_library(path)
    library.engine_kernels.argtypes = [ctypes.c_char_p]
    library.engine_kernels.restype = POINTER(Kernels)
    tables = {isa: library.engine_kernels(isa.encode()) for isa in ISAS}
    return {isa: table.contents for isa, table in tables.items() if table}


def at(array):
    return array.ctypes.data


def random_matrix(kind, rows, columns, rng):
    weights = rng.standard_normal((rows, columns)).astype(np.float32)
    if kind is Format.BF16:
        return round_to_bfloat(weights)
    if kind is Format.Q8_0:
        return quantize(weights)
    groups = columns // GROUP
    return Matrix(
        format=kind,
        values=rng.integers(0, 16, (rows, columns), dtype=np.uint8),
        scales=rng.uniform(0.01, 0.2, (rows, groups)).astype(np.float16),
        minima=rng.uniform(-1, 0, (rows, groups)).astype(np.float16)
        if kind is Format.Q4_1
        else None,
    )


class Packed:
    """A matrix's `Linear`, exactly as many bytes as it needs."""

    def __init__(self, matrix, bias=None):
        self.tiles = np.zeros(matrix.packed_bytes, dtype=np.uint8)
        matrix.pack(self.tiles)
        self.bias = bias
        self.linear = Linear(
            tiles=at(self.tiles),
            bias=None if bias is None else at(bias),
            format=matrix.format,
            rows=matrix.rows,
            columns=matrix.columns,
        )


class Rounded:
    """Rows of activations, exactly as large as they need to be."""

    def __init__(self, rows, columns, *, is_bfloat):
        kind = np.uint16 if is_bfloat else np.int8
        self.values = np.zeros((rows, columns), dtype=kind)
        self.scales = np.zeros((rows, columns // GROUP), dtype=np.float32)
        self.offsets = np.zeros_like(self.scales)
        self.sums = np.zeros(self.scales.shape, dtype=np.int32)
        self.c = Activations(
            values=at(self.values),
            scales=at(self.scales),
            offsets=at(self.offsets),
            sums=at(self.sums),
            columns=columns,
            is_bfloat=is_bfloat,
        )

    def floats(self):
        if self.c.is_bfloat:
            return (self.values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        grouped = self.values.reshape(len(self.values), -1, GROUP).astype(np.float64)
        return (grouped * self.scales[:, :, None]).reshape(self.values.shape)


def check_rounding(rounded, exact):
    """Each value within half a step of its group (int8), or of its own last bit (bfloat16)."""
    if rounded.c.is_bfloat:
        limit = np.abs(exact) * 2.0**-8 + 1e-30
    else:
        largest = np.abs(exact.reshape(len(exact), -1, GROUP)).max(axis=2)
        limit = np.repeat(largest / 127 * 0.5001, GROUP, axis=1) + np.abs(exact) * 1e-5 + 1e-30
        sums = rounded.values.reshape(len(exact), -1, GROUP).sum(axis=2, dtype=np.int32)
        np.testing.assert_array_equal(rounded.sums, sums)
        np.testing.assert_allclose(rounded.offsets, rounded.scales * sums, rtol=1e-6)
    assert (np.abs(rounded.floats() - exact) <= limit).all()


def check_linear(kernels, kind, *, tiles, columns, rows, seed):
    """All rows at once against float64, and bit for bit against row by row, tile by tile."""
    rng = np.random.default_rng(seed)
    matrix = random_matrix(kind, 16 * tiles, columns, rng)
    bias = rng.standard_normal(matrix.rows).astype(np.float32) if seed % 2 else None
    packed = Packed(matrix, bias)
    x = Rounded(rows, columns, is_bfloat=kind is Format.BF16)
    inputs = rng.standard_normal((rows, columns)).astype(np.float32)
    for row in range(rows):
        kernels.quantize(at(inputs[row]), x.c, row)
    check_rounding(x, inputs.astype(np.float64))
    out = np.ones((rows, matrix.rows), dtype=np.float32)
    linear = kernels.linear[kind]
    linear(packed.linear, 0, tiles, x.c, 0, rows, at(out), matrix.rows, 1)
    exact = x.floats() @ matrix.dequantize().astype(np.float64).T + 1
    if bias is not None:
        exact += bias
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=2e-5 * columns)
    alone = np.ones((rows, matrix.rows), dtype=np.float32)
    for row in range(rows):
        for tile in range(tiles):
            place = at(alone[row, 16 * tile :])
            linear(packed.linear, tile, tile + 1, x.c, row, row + 1, place, matrix.rows, 1)
    np.testing.assert_array_equal(alone, out)


def check_unpack(kernels, kind, tiles, columns, seed):
    matrix = random_matrix(kind, 16 * tiles, columns, np.random.default_rng(seed))
    packed = Packed(matrix)
    exact = matrix.dequantize()
    for row in range(matrix.rows):
        out = np.zeros(columns, dtype=np.float32)
        kernels.unpack_row(packed.linear, row, at(out))
        np.testing.assert_allclose(out, exact[row], rtol=1e-6, atol=1e-7)


def check_normalize(kernels, width, is_bfloat, seed):
    columns = -(-width // 64) * 64
    rng = np.random.default_rng(seed)
    x, weight = np.zeros((2, columns), dtype=np.float32)
    x[:width] = rng.standard_normal(width) * 10.0 ** rng.integers(-3, 4)
    weight[:width] = rng.standard_normal(width)
    out = Rounded(1, columns, is_bfloat=is_bfloat)
    kernels.normalize(at(x), at(weight), width, 1e-5, out.c, 0)
    mean = (x.astype(np.float64) ** 2).sum() / width
    check_rounding(out, (x * weight / np.sqrt(mean + 1e-5))[None])


def check_swiglu(kernels, rows, units, is_bfloat, seed):
    rng = np.random.default_rng(seed)
    gate_up = (rng.standard_normal((units, rows, 2, GROUP)) * 20).astype(np.float32)
    out = Rounded(rows + 1, units * GROUP, is_bfloat=is_bfloat)
    for unit in range(units):
        kernels.swiglu(at(gate_up[unit]), 1, rows + 1, unit, out.c)
    gate, up = gate_up.astype(np.float64).transpose(2, 1, 0, 3).reshape(2, rows, -1)
    exact = np.zeros((rows + 1, units * GROUP))
    exact[1:] = gate / (1 + np.exp(-gate)) * up
    check_rounding(out, exact)


def check_argmax(kernels, count, seed):
    rng = np.random.default_rng(seed)
    logits = rng.integers(-5, 5, count).astype(np.float32)
    assert kernels.argmax(at(logits), count) == int(np.argmax(logits))
    logits[rng.integers(count)] = rng.choice([np.nan, np.inf, -np.inf])
    assert kernels.argmax(at(logits), count) == -1


def check_bad_activation(kernels, place, value):
    """Rounding leaves no number where there was none; other groups stay as they were."""
    row = np.linspace(-3, 3, 128, dtype=np.float32)
    sound, bad = (Rounded(1, row.size, is_bfloat=False) for _ in range(2))
    kernels.quantize(at(row), sound.c, 0)
    row[place] = value
    kernels.quantize(at(row), bad.c, 0)
    others = np.arange(row.size // GROUP) != place // GROUP
    assert not np.isfinite(bad.scales[0, ~others]).any()
    np.testing.assert_array_equal(bad.scales[:, others], sound.scales[:, others])
