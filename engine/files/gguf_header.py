"""Reads the header of a GGUF file: metadata and tensor locations. Never reads weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError

_MAGIC = b"GGUF"
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_NESTED = 4  # arrays in arrays
_MAX_ALIGNMENT = 2**16
# A vocabulary of 260,000 has about 1.5 million values with its merges and scores.
_MAX_VALUES = 2**22
_MAX_TEXT_BYTES = 2**24
_LEAST_KEY, _LEAST_TENSOR = 13, 24  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Location of one tensor. `shape` is in GGUF order: the contiguous dimension first."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int  # bytes from the start of the file


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """Metadata by key, tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read a file's header (about 0.1 s for a vocabulary of 50,000).

    Raises:
        ModelFileError: not a GGUF file, of an unknown version, or damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data, path).header()
    except (struct.error, UnicodeDecodeError, LookupError, OverflowError, MemoryError) as error:
        raise ModelFileError(f"{path}: damaged GGUF header ({error!r})") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be read ({error})") from error


class _Cursor:
    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self._at = 0
        self._values = 0

    def header(self) -> GgufHeader:
        if self._data[:4] != _MAGIC:
            raise ModelFileError(
                f"{self._path}: must be a GGUF file (it starts with {self._data[:4]!r})"
            )
        self._at = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise ModelFileError(f"{self._path}: GGUF version must be 2 or 3 (got {version})")
        tensor_count, key_count = self._scalar("Q"), self._scalar("Q")
        if key_count * _LEAST_KEY + tensor_count * _LEAST_TENSOR > len(self._data):
            counts = f"{key_count} keys and {tensor_count} tensors"
            raise ModelFileError(f"{self._path}: {counts} do not fit into the file")
        self._spend(key_count + tensor_count)
        metadata = {self._string(): self._value(self._scalar("I")) for _ in range(key_count)}
        infos = [self._tensor() for _ in range(tensor_count)]
        start = self._start_of_data(metadata.get("general.alignment", 32))
        tensors = {
            name: TensorInfo(name=name, shape=shape, ggml_type=kind, offset=start + offset)
            for name, shape, kind, offset in infos
        }
        if len(metadata) < key_count or len(tensors) < tensor_count:
            raise ModelFileError(f"{self._path}: names of keys and tensors must be unique")
        beyond = next((one for one in tensors.values() if one.offset > len(self._data)), None)
        if beyond is not None:
            raise ModelFileError(
                f"{self._path}: tensor {beyond.name!r} begins beyond the end of the file"
            )
        return GgufHeader(path=self._path, metadata=metadata, tensors=tensors)

    def _start_of_data(self, alignment: object) -> int:
        if not isinstance(alignment, int) or not 1 <= alignment <= _MAX_ALIGNMENT:
            raise ModelFileError(
                f"{self._path}: general.alignment must be 1 to {_MAX_ALIGNMENT} "
                f"(got {str(alignment)[:80]})"
            )
        return -(-self._at // alignment) * alignment

    def _spend(self, count: int) -> None:
        """Limit the values of all lists together: a byte of the file may become an object."""
        self._values += count
        if self._values > _MAX_VALUES:
            raise ModelFileError(f"{self._path}: the header must have at most {_MAX_VALUES} values")

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        if length > _MAX_TEXT_BYTES:
            raise ModelFileError(
                f"{self._path}: strings must be at most {_MAX_TEXT_BYTES} bytes (got {length})"
            )
        return self._bytes(length).decode()

    def _bytes(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise ModelFileError(f"{self._path}: the header ends beyond the end of the file")
        chunk = self._data[self._at : end]
        self._at = end
        return chunk

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(depth + 1)
        return self._scalar(_SCALARS[kind])

    def _array(self, depth: int) -> list[Any]:
        if depth > _MAX_NESTED:
            raise ModelFileError(f"{self._path}: arrays nested more than {_MAX_NESTED} deep")
        kind, count = self._scalar("I"), self._scalar("Q")
        if count > len(self._data):
            raise ModelFileError(
                f"{self._path}: an array of {count} values does not fit into the file"
            )
        self._spend(count)
        if kind in _SCALARS:
            layout = f"<{count}{_SCALARS[kind]}"
            return list(struct.unpack(layout, self._bytes(struct.calcsize(layout))))
        return [self._value(kind, depth) for _ in range(count)]

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dimensions = self._scalar("I")
        if dimensions > _MAX_DIMENSIONS:
            raise ModelFileError(f"{self._path}: tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(dimensions))
        return name, shape, self._scalar("I"), self._scalar("Q")
