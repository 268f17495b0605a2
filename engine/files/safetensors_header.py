"""Reads the header of a safetensors file: type, shape and location of each tensor. No weights.

Format: https://github.com/huggingface/safetensors, a length, a JSON object, then raw tensors.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError

MAX_HEADER_BYTES = 100_000_000  # the format's limit
_LENGTH_BYTES = 8
_MAX_DIMENSIONS = 8
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor; `start` and `end` are bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_safetensors_header(path: Path) -> dict[str, StoredTensor]:
    """Tensors by name; each is inside the file and has the size of its shape.

    Raises:
        ModelFileError: the file can't be read, or its header is damaged.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            most = min(size - _LENGTH_BYTES, MAX_HEADER_BYTES)
            if not 2 <= length <= most:
                raise ModelFileError(
                    f"{path}: header length must be 2 to {most} bytes (got {length})"
                )
            header = json.loads(file.read(length))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: cannot be read ({str(error)[:200]})") from error
    if not isinstance(header, dict):
        raise ModelFileError(f"{path}: cannot be read (the header is not an object)")
    start = _LENGTH_BYTES + length
    return {
        name: _tensor(path, name, info, start, size)
        for name, info in header.items()
        if name != "__metadata__"
    }


def _tensor(path: Path, name: str, info: Any, start: int, size: int) -> StoredTensor:
    shown = name[:100]
    match info:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(first), int(last)]}:
            pass
        case _:
            message = f"{path}: tensor {shown!r} must be an object with dtype, shape and offsets"
            raise ModelFileError(message)
    if len(shape) > _MAX_DIMENSIONS or any(type(one) is not int or one < 0 for one in shape):
        raise ModelFileError(f"{path}: tensor {shown!r} has an invalid shape")
    if not 0 <= first <= last <= size - start:
        raise ModelFileError(f"{path}: tensor {shown!r} ends beyond the end of the file")
    item = _ITEM_BYTES.get(dtype)  # the reader of the tensor rejects other types
    if item is not None and math.prod(shape) * item != last - first:
        raise ModelFileError(
            f"{path}: tensor {shown!r} of shape {shape} must have "
            f"{math.prod(shape) * item} bytes (got {last - first})"
        )
    return StoredTensor(dtype=dtype, shape=tuple(shape), start=start + first, end=start + last)
