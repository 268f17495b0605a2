"""Bindings of the C library: its structures (step.h, kernels.h), loading, the choice of ISA.

Every call releases the GIL. `engine.model.kernels.build` compiles the library.
"""

import ctypes
import os
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_size_t,
    c_void_p,
)
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError
from engine.model.kernels.build import HERE, LIBRARY_NAME
from engine.system.shared_library import check_whole

ISA_VARIABLE = "SESSIOND_CPU_ISA"
ISAS = ("portable", "avx2", "avx512")  # best last
PHASES = (
    "embed norm qkv kv_write attend merge output gate_up down head choose".split()  # noqa: SIM905 -- a list of words
)
PARTIAL_HEADER = 16
_CACHE_LINE = 64

Bytes = npt.NDArray[np.uint8]


class Format(IntEnum):
    """Packed format of a weight matrix; see linear_*.c."""

    Q4_1 = 0
    Q4_0 = 1
    Q8_0 = 2
    BF16 = 3


class Linear(Structure):
    """`Linear` of kernels.h."""

    _fields_ = (
        ("tiles", c_void_p),
        ("bias", c_void_p),
        ("format", c_int32),
        ("rows", c_int32),
        ("columns", c_int32),
        ("padding", c_int32),
    )


class Layer(Structure):
    """`Layer` of step.h."""

    _fields_ = (
        *((name, Linear) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        ("window", c_int32),
        ("padding", c_int32),
    )


class Model(Structure):
    """`Model` of step.h."""

    _fields_ = (
        ("layers", POINTER(Layer)),
        ("embedding", Linear),
        ("head", Linear),
        ("final_norm", c_void_p),
        ("rotation", c_void_p),
        ("pool", c_void_p),
        ("block_bytes", c_size_t),
        ("num_layers", c_int32),
        ("num_blocks", c_int32),
        ("rotation_rows", c_int32),
        ("hidden", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("vocab", c_int32),
        ("epsilon", c_float),
        ("activations_are_bfloat", c_int32),
        ("kv_is_float", c_int32),
        ("kv_is_int8", c_int32),
    )


class Step(Structure):
    """`Step` of step.h."""

    _fields_ = (
        ("rows", c_int32),
        ("sequences", c_int32),
        ("outputs", c_int32),
        ("logits_stride", c_int32),
        ("tokens", c_void_p),
        ("row_starts", c_void_p),
        ("first_positions", c_void_p),
        ("entry_starts", c_void_p),
        ("entry_counts", c_void_p),
        ("entries", c_void_p),
        ("output_rows", c_void_p),
        ("logits", c_void_p),
        ("choices", c_void_p),
    )


class Effort(Structure):
    """`Effort` of pool.h: timings of the last step, in seconds.

    `cpu` is the sum over its threads, `waiting` the part of it spent waiting for late threads.
    """

    _fields_ = (("wall", c_double), ("cpu", c_double), ("waiting", c_double))


class LibraryMissingError(Exception):
    """The library was not built (no compiler at install), or can't be loaded."""


def load_library(path: Path | None = None) -> ctypes.CDLL:
    """Load the library that the package's build put beside this file.

    Raises:
        LibraryMissingError: it is missing, cut short or another; the message says why.
    """
    path = path or HERE / LIBRARY_NAME
    try:
        check_whole(path)
        library = ctypes.CDLL(str(path))
        _declare(library)
    except (OSError, AttributeError) as error:  # AttributeError: it lacks a function
        raise LibraryMissingError(str(error)) from error
    return library


def _declare(library: ctypes.CDLL) -> None:
    library.engine_supports.argtypes = [c_char_p]
    library.engine_new.argtypes = [POINTER(Model), c_char_p, c_int]
    library.engine_new.restype = c_void_p
    library.engine_free.argtypes = [c_void_p]
    library.engine_free.restype = None
    library.engine_step.argtypes = [c_void_p, POINTER(Step)]
    library.engine_set_rotation.argtypes = [c_void_p, c_void_p, c_int]
    library.engine_set_rotation.restype = None
    library.engine_set_threads.argtypes = [c_void_p, c_int]
    library.engine_set_threads.restype = None
    library.engine_effort.argtypes = [c_void_p, POINTER(Effort)]
    library.engine_effort.restype = None
    library.engine_profile.argtypes = [c_void_p, c_void_p]
    library.engine_profile.restype = None
    library.engine_allocate.argtypes = [c_size_t]
    library.engine_allocate.restype = c_void_p
    library.engine_release.argtypes = [c_void_p, c_size_t]
    library.engine_release.restype = None


def choose_isa(library: ctypes.CDLL) -> str:
    """Return the processor's best instruction set, or the one that SESSIOND_CPU_ISA names.

    Raises:
        ConfigError: the variable names one that is unknown or not supported.
    """
    supported = [isa for isa in ISAS if library.engine_supports(isa.encode())]
    wanted = os.environ.get(ISA_VARIABLE)
    if not wanted:
        return supported[-1]
    if wanted not in supported:
        raise ConfigError(ISA_VARIABLE, wanted, f"one of {', '.join(supported)} on this processor")
    return wanted


class Memory:
    """Bytes on large pages, zero at first, committed when first written. Freed with the object."""

    def __init__(self, library: ctypes.CDLL, size: int) -> None:
        self._library = library
        self._size = max(size, 1)
        address = library.engine_allocate(self._size)
        if not address:
            raise MemoryError
        self.address: int = address
        buffer = memoryview((ctypes.c_uint8 * self._size).from_address(address))
        self.bytes: Bytes = np.frombuffer(buffer, dtype=np.uint8)

    def __del__(self) -> None:
        # a failed allocation leaves no address
        if getattr(self, "address", 0):
            self._library.engine_release(self.address, self._size)


def aligned_zeros(kind: Any, *shape: int) -> npt.NDArray[Any]:
    """Return zeros that begin at a cache line: vectors across two lines are read twice."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    raw = np.zeros(size + _CACHE_LINE, dtype=np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE
    array: npt.NDArray[Any] = raw[start : start + size].view(kind).reshape(shape)
    return array


def address_of(array: npt.NDArray[Any]) -> int:
    """Return the address of an array's values; the caller keeps the array alive."""
    return int(array.ctypes.data)
