"""Reads weights from a GGUF file: maps it and dequantises tensor by tensor.

Block formats: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. The `gguf` package
dequantises them; its reader takes seconds, so engine.files.gguf_header reads the header.
"""

import mmap
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from torch import Tensor

from engine.errors import ModelFileError
from engine.files.gguf_header import TensorInfo, read_gguf_header
from engine.files.gguf_names import gguf_name
from engine.files.model_spec import ModelSpec
from engine.model.weights.quantized import QUANTIZED, QuantizedRows

_KNOWN_TYPES = tuple(
    GGMLQuantizationType[name]
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
)


class GgufTensors:
    """A TensorSource over one GGUF file. Use as a context manager: it keeps the file mapped."""

    def __init__(self, spec: ModelSpec) -> None:
        self.pairs_interleaved = spec.architecture == "llama"
        header = read_gguf_header(spec.path)
        self._path = spec.path
        self._tensors = header.tensors
        with spec.path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._data.close()

    def has(self, name: str) -> bool:
        """See TensorSource."""
        return gguf_name(name) in self._tensors

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See TensorSource. The result is float32."""
        kind, raw = self._raw(name, shape)
        values = quants.dequantize(raw, kind)
        # F32 is returned as a read-only view
        return torch.from_numpy(np.require(values, np.float32, ("C", "W")))

    def read_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedRows | None:
        """See TensorSource."""
        kind, raw = self._raw(name, shape)
        if kind.name not in QUANTIZED:
            return None
        return QuantizedRows(kind=kind.name, data=torch.from_numpy(raw.copy()))

    def _raw(
        self, name: str, shape: tuple[int, ...]
    ) -> tuple[GGMLQuantizationType, npt.NDArray[np.uint8]]:
        """Return a tensor's type and its bytes, read only, row by row."""
        info = self._tensors.get(gguf_name(name))
        if info is None:
            raise ModelFileError(f"{self._path}: tensor {gguf_name(name)!r} is missing")
        if info.shape != shape[::-1]:
            raise ModelFileError(
                f"{self._path}: shape of tensor {info.name!r} must be {shape} "
                f"(got {info.shape[::-1]})"
            )
        kind = self._known_type(info)
        values_per_block, bytes_per_block = GGML_QUANT_SIZES[kind]
        if shape[-1] % values_per_block:
            raise ModelFileError(
                f"{self._path}: row length of {kind.name} tensor {info.name!r} must be a "
                f"multiple of {values_per_block} (got {shape[-1]})"
            )
        row_bytes = shape[-1] // values_per_block * bytes_per_block
        end = info.offset + row_bytes * (shape[0] if len(shape) > 1 else 1)
        if end > len(self._data):
            raise ModelFileError(
                f"{self._path}: tensor {info.name!r} ends beyond the end of the file"
            )
        # a copy, so that nothing refers to the map when it is closed
        raw = np.frombuffer(self._data[info.offset : end], dtype=np.uint8)
        return kind, raw.reshape(*shape[:-1], row_bytes)

    def _known_type(self, info: TensorInfo) -> GGMLQuantizationType:
        for kind in _KNOWN_TYPES:
            if kind == info.ggml_type:
                return kind
        allowed = ", ".join(kind.name for kind in _KNOWN_TYPES)
        names = {kind.value: kind.name for kind in GGMLQuantizationType}
        raise ModelFileError(
            f"{self._path}: type of tensor {info.name!r} must be one of {allowed} "
            f"(got {names.get(info.ggml_type, info.ggml_type)})"
        )
