"""What a backend of attention offers. Loop thread only."""

from typing import Protocol

from torch import Tensor

from engine.memory.kv_store import KvStore
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
