"""Reads weights from a folder of safetensors files, whole or sharded."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelFileError
from engine.files.model_spec import ModelSpec
from engine.files.weight_files import weight_files

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class SafetensorsFolder:
    """A TensorSource over one folder. Use as a context manager: it keeps the files open."""

    pairs_interleaved = False

    def __init__(self, spec: ModelSpec) -> None:
        self._folder = spec.path
        self._files = {path: _opened(path) for path in weight_files(spec.path)}
        self._file_of = {
            name: file
            for file in self._files.values()
            for name in file.keys()  # noqa: SIM118 -- not a dict
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.__exit__(kind, error, traceback)

    def has(self, name: str) -> bool:
        """See TensorSource."""
        return name in self._file_of

    def read_quantized(self, name: str, shape: tuple[int, ...]) -> None:
        """See TensorSource. All tensors of such a folder are floating point."""

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See TensorSource. The result has the file's type."""
        file = self._file_of.get(name)
        if file is None:
            raise ModelFileError(f"{self._folder}: tensor {name!r} is missing")
        tensor: Tensor = file.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelFileError(
                f"{self._folder}: shape of tensor {name!r} must be {shape} "
                f"(got {tuple(tensor.shape)})"
            )
        if tensor.dtype not in _FLOATS:
            raise ModelFileError(
                f"{self._folder}: type of tensor {name!r} must be one of "
                f"{', '.join(map(str, _FLOATS))} (got {tensor.dtype})"
            )
        return tensor


def _opened(path: Path) -> Any:  # the package does not type what it opens
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelFileError(f"{path}: cannot be read ({error})") from error
