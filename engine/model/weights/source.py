"""What a reader of weights offers to the loader."""

from typing import Protocol

from torch import Tensor

from engine.model.weights.quantized import QuantizedRows


class TensorSource(Protocol):
    """Tensors of one model by their name in transformers, whatever the file calls them.

    `pairs_interleaved`: the rows of q and k hold a rotary pair as neighbours (as GGUF files of
    Llama models do), not half a head apart (as transformers does).
    """

    pairs_interleaved: bool

    def has(self, name: str) -> bool:
        """Say whether the file holds a tensor."""
        ...

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor as floating point, in memory of its own.

        Raises:
            ModelFileError: missing, of another shape, of an unknown type, or cut off.
        """
        ...

    def read_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedRows | None:
        """Read a matrix as quantised as the file has it, None if it is floating point there.

        Raises:
            ModelFileError: as `read` does.
        """
        ...
