"""Interface of attention backends. Loop thread only."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from engine.kv.tensors import KvStore
from engine.model.batch import Batch


class AttentionStep(Protocol):
    """One prepared step of a backend: what depends on page tables only is already computed."""

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Attend causally over each token's own context, KV of the new tokens already stored.

        Args:
            layer: number of the layer; it decides whether a sliding window applies.
            queries: [N, heads, head_dim], rotated by their absolute position.

        Returns:
            [N, heads * head_dim], head after head.
        """
        ...


class AttentionBackend(Protocol):
    """Prepares steps. Reads K in the KvStore's form: see its `position_form`."""

    name: str

    def prepare(self, batch: Batch, store: KvStore) -> AttentionStep:
        """Build what all layers of this step share (indices, rotations, masks)."""
        ...


class FixedAttentionStep(AttentionStep, Protocol):
    """A step with tensors at fixed addresses, for a decode graph.

    Results for rows of queries beyond the batch are finite.
    """

    def fill(self, batch: Batch) -> bool:
        """Write a batch's tables to the tensors that `attend` reads, in the current stream.

        False, and nothing written: the batch does not fit, or a sequence is not decoded.
        """
        ...


@runtime_checkable
class CapturableBackend(Protocol):
    """A backend whose shapes can be the same in every decode step."""

    def fixed_step(
        self, store: KvStore, *, tokens: int, pages: int, longest: int, max_position: int
    ) -> FixedAttentionStep:
        """Return a step for `tokens` rows of queries.

        `pages`: maximum of the page-table entries of all sequences; `longest`: of one sequence.
        """
        ...
