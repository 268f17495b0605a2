"""Reads weights from a folder of safetensors files, whole or sharded."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelFileError
from engine.files.model_spec import ModelSpec

_INDEX = "model.safetensors.index.json"
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

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See TensorSource. The result has the file's type."""
        file = self._file_of.get(name)
        if file is None:
            raise ModelFileError(f"{self._folder}: tensor {name!r} is missing")
        tensor: Tensor = file.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelFileError(
                f"{self._folder}: tensor {name!r} has shape {tuple(tensor.shape)}: "
                f"allowed is {shape}"
            )
        if tensor.dtype not in _FLOATS:
            raise ModelFileError(
                f"{self._folder}: tensor {name!r} has type {tensor.dtype}: "
                f"allowed is {', '.join(map(str, _FLOATS))}"
            )
        return tensor


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold the weights: those that the index names, or all there are.

    Raises:
        ModelFileError: there is none, or the index is damaged.
    """
    index = folder / _INDEX
    if index.exists():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(f"{index}: damaged ({error!r})") from error
        return [folder / name for name in sorted(names)]
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelFileError(f"{folder}: holds no *.safetensors file")
    return paths


def _opened(path: Path) -> Any:  # the package does not type what it opens
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelFileError(f"{path}: cannot be read ({error})") from error
