"""Reads matrices and vectors from model files, quantised ones as stored. No torch."""

import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.errors import ModelFileError
from engine.files.gguf_header import read_gguf_header
from engine.files.gguf_names import gguf_name
from engine.files.model_spec import ModelSpec
from engine.files.safetensors_header import StoredTensor, read_safetensors_header
from engine.files.weight_files import weight_files
from engine.model.kernels.library import Bytes, Format
from engine.model.kernels.matrix import Floats, Matrix, round_to_bfloat
from engine.planning.formats import GGML_TYPES
from engine.planning.native_sizes import GROUP

# GGML's numbers of types (ggml.h)
_F32, _F16, _BF16 = 0, 1, 30
_FLOATS = (_F32, _F16, _BF16)
_Q4_1, _Q8_0 = 3, 8
_SAFETENSORS_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}


class Tensors(Protocol):
    """Tensors of one model by their name in transformers, in the file's own precision.

    `pairs_interleaved`: rows of q and k hold a rotary pair as neighbours, not half a head apart.
    """

    pairs_interleaved: bool

    def has(self, name: str) -> bool:
        """Whether the file has this tensor."""
        ...

    def is_quantized(self, name: str) -> bool:
        """Whether the file has this tensor quantised."""
        ...

    def read(self, name: str, shape: tuple[int, ...]) -> Matrix | Floats:
        """Read a tensor: quantised as stored, or as floats.

        Raises:
            ModelFileError: missing, of another shape, of an unknown type, or cut off.
        """
        ...


@contextmanager
def open_tensors(spec: ModelSpec) -> Iterator[Tensors]:
    """Open a model's file or folder.

    Raises:
        ModelFileError: it can't be read.
    """
    match spec.format:
        case "gguf":
            yield _Gguf(spec)
        case "safetensors":
            yield _Safetensors(spec)
        case "random":
            raise ModelFileError(f"{spec.name} has no file: only torch generates random weights")


class _Gguf:
    def __init__(self, spec: ModelSpec) -> None:
        self.pairs_interleaved = spec.architecture == "llama"
        self._path = spec.path
        self._infos = read_gguf_header(spec.path).tensors
        with spec.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data = np.frombuffer(mapped, dtype=np.uint8)

    def has(self, name: str) -> bool:
        return gguf_name(name) in self._infos

    def is_quantized(self, name: str) -> bool:
        return self.has(name) and self._infos[gguf_name(name)].ggml_type not in _FLOATS

    def read(self, name: str, shape: tuple[int, ...]) -> Matrix | Floats:
        info = self._infos.get(gguf_name(name))
        if info is None:
            raise ModelFileError(f"{self._path}: tensor {gguf_name(name)!r} is missing")
        _check_shape(self._path, info.name, info.shape[::-1], shape)
        if info.ggml_type not in GGML_TYPES:
            raise ModelFileError(
                f"{self._path}: GGML type of tensor {info.name!r} must be one of "
                f"{sorted(GGML_TYPES)} (got {info.ggml_type})"
            )
        kind = GGML_TYPES[info.ggml_type]
        if shape[-1] % kind.values:
            raise ModelFileError(
                f"{self._path}: row length of tensor {info.name!r} must be a multiple of "
                f"{kind.values} (got {shape[-1]})"
            )
        row_bytes = shape[-1] // kind.values * kind.num_bytes
        end = info.offset + row_bytes * math.prod(shape[:-1])
        if end > len(self._data):
            raise ModelFileError(
                f"{self._path}: tensor {info.name!r} ends beyond the end of the file"
            )
        raw = self._data[info.offset : end].reshape(*shape[:-1], row_bytes)
        return _from_ggml(info.ggml_type, raw)


def _from_ggml(kind: int, raw: Bytes) -> Matrix | Floats:
    match kind:
        case 0:
            return raw.view("<f4").astype(np.float32)
        case 1:
            return raw.view("<f2").astype(np.float32)
        case 30:
            return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        case 2 | 3 | 8:
            return _quantized(kind, raw.reshape(len(raw), -1, GGML_TYPES[kind].num_bytes))
        case _:
            # the package dequantises all other types; it is slow to import
            from gguf import GGMLQuantizationType, quants

            return quants.dequantize(raw, GGMLQuantizationType(kind)).astype(np.float32)


def _quantized(kind: int, blocks: Bytes) -> Matrix:
    """Unpack [rows, groups, bytes of a block] (ggml-common.h: block_q4_0 and similar)."""

    def halves(start: int) -> npt.NDArray[np.float16]:
        return np.ascontiguousarray(blocks[:, :, start : start + 2]).view(np.float16)[:, :, 0]

    rows = len(blocks)
    if kind == _Q8_0:
        values = np.ascontiguousarray(blocks[:, :, 2:]).reshape(rows, -1) ^ 0x80  # signed: + 128
        return Matrix(format=Format.Q8_0, values=values, scales=halves(0))
    start = 4 if kind == _Q4_1 else 2
    nibbles = blocks[:, :, start:]
    values = np.empty((rows, blocks.shape[1], GROUP), dtype=np.uint8)
    np.bitwise_and(nibbles, 15, out=values[:, :, : GROUP // 2])
    np.right_shift(nibbles, 4, out=values[:, :, GROUP // 2 :])
    return Matrix(
        format=Format.Q4_1 if kind == _Q4_1 else Format.Q4_0,
        values=values.reshape(rows, -1),
        scales=halves(0),
        minima=halves(2) if kind == _Q4_1 else None,
    )


class _Safetensors:
    """Format: https://github.com/huggingface/safetensors, a JSON header before raw tensors."""

    pairs_interleaved = False

    def __init__(self, spec: ModelSpec) -> None:
        self._places: dict[str, tuple[Path, StoredTensor]] = {}
        self._folder = spec.path
        for path in weight_files(spec.path):
            found = read_safetensors_header(path)
            self._places |= {name: (path, tensor) for name, tensor in found.items()}

    def has(self, name: str) -> bool:
        return name in self._places

    def is_quantized(self, name: str) -> bool:
        del name
        return False

    def read(self, name: str, shape: tuple[int, ...]) -> Matrix | Floats:
        if name not in self._places:
            raise ModelFileError(f"{self._folder}: tensor {name!r} is missing")
        path, tensor = self._places[name]
        _check_shape(path, name, tensor.shape, shape)
        if tensor.dtype not in _SAFETENSORS_TYPES:
            raise ModelFileError(
                f"{path}: type of tensor {name!r} must be one of "
                f"{', '.join(_SAFETENSORS_TYPES)} (got {tensor.dtype[:20]})"
            )
        # copied: offsets need not be multiples of the item size
        raw = np.frombuffer(_part(path, tensor), _SAFETENSORS_TYPES[tensor.dtype])
        if tensor.dtype == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float32).reshape(shape)


def _part(path: Path, tensor: StoredTensor) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(tensor.start)
            return file.read(tensor.end - tensor.start)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error})") from error


def _check_shape(path: Path, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise ModelFileError(f"{path}: shape of tensor {name!r} must be {wanted} (got {found})")


def as_floats(tensor: Matrix | Floats) -> Floats:
    """Return a tensor in float32."""
    return tensor.dequantize() if isinstance(tensor, Matrix) else tensor


def as_bfloats(tensor: Matrix | Floats) -> Matrix:
    """Return a matrix in bfloat16."""
    return round_to_bfloat(as_floats(tensor))
