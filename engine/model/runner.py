"""A model ready to run, and its runner over one KV tensor. Loop thread only."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.files.model_spec import ModelSpec
from engine.ids import BlockId
from engine.step import SequenceStep


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """Weights in memory, device, dtypes and attention backend resolved; no KV pool yet.

    `kv_bytes_per_block` counts all layers, K and V. `fingerprint` is a hex SHA-256 over the
    spec, the dtypes, the attention backend and the identity of the files.
    """

    spec: ModelSpec
    device: str
    dtype: str
    kv_dtype: str
    attention: str
    weights_bytes: int
    block_size: int
    kv_bytes_per_block: int
    fingerprint: str

    def measure_activation_peak(self, max_num_batched_tokens: int, max_num_seqs: int) -> int:
        """Run worst-case steps and return the bytes that they held beyond weights and KV."""
        raise NotImplementedError

    def runner(self, num_blocks: int) -> "TorchRunner":
        """Allocate a pool of `num_blocks` blocks and return a runner over it."""
        raise NotImplementedError


class TorchRunner:
    """Implements engine.step.ModelRunner."""

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        """See engine.step.ModelRunner."""
        raise NotImplementedError

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        """See engine.step.ModelRunner."""
        raise NotImplementedError

    def logits(self, batch: Sequence[SequenceStep]) -> torch.Tensor:
        """As `execute`, but return the logits [sampling sequences, vocab] instead of tokens."""
        raise NotImplementedError


def prepare_model(spec: ModelSpec, config: EngineConfig) -> LoadedModel:
    """Load the weights and resolve device, dtypes and attention backend.

    Raises:
        ModelFileError: a tensor is missing, has the wrong shape or an unknown type.
        ConfigError: the device or a dtype can't be had.
    """
    raise NotImplementedError
