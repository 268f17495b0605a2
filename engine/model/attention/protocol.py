"""Interface of attention backends. Loop thread only."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from engine.kv.tensors import KvStore
from engine.model.batch import Batch


class AttentionStep(Protocol):
    """A backend, ready for one step: what depends on the page tables only is already computed."""

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Attend causally over each token's own context, KV of the new tokens already stored.

        Args:
            layer: number of the layer, which says whether its sliding window applies.
            queries: [N, heads, head_dim], rotated by their absolute position.

        Returns:
            [N, heads * head_dim], a head of head_dim values after the other.
        """
        ...


class AttentionBackend(Protocol):
    """Makes a step ready. Reads K as the KvStore holds it: see its `position_form`."""

    name: str

    def prepare(self, batch: Batch, store: KvStore) -> AttentionStep:
        """Build what all layers of this step share (indices, rotations, masks)."""
        ...


class FixedAttentionStep(AttentionStep, Protocol):
    """A step whose tensors stay where they are, for a graph of decode.

    Of rows of queries beyond the batch's it makes something finite.
    """

    def fill(self, batch: Batch) -> bool:
        """Write a batch's tables to where `attend` reads them, in the current stream.

        False: there is no room for it, or a sequence that is not decoded; nothing was written.
        """
        ...


@runtime_checkable
class CapturableBackend(Protocol):
    """A backend whose shapes can be the same in every step of decode."""

    def fixed_step(
        self, store: KvStore, *, tokens: int, pages: int, longest: int, max_position: int
    ) -> FixedAttentionStep:
        """Make a step for so many rows of queries.

        `pages`: page-table entries of all sequences, `longest`: of one, at most.
        """
        ...
