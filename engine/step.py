"""What one step of the model is given and gives back. No torch: the fake model uses it too."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.ids import BlockId
from engine.memory.page_table import PageEntry
from engine.messages import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAt:
    """Draw one token from the logits of the sequence's last new token.

    The draw depends on (`sampling.seed`, `output_index`) and the logits only, so a preempted or
    recomputed turn draws the same token again.
    """

    sampling: Sampling
    output_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStep:
    """What one sequence does in a step: compute KV of `token_ids`, maybe draw a token.

    `entries` is the page table up to and including the new tokens, whose slots are the last
    `len(token_ids)` valid ones. `first_position` is the position of the first new token (slot
    index is not position: see engine.memory.page_table).
    """

    token_ids: Sequence[int]
    first_position: int
    entries: Sequence[PageEntry]
    sample: SampleAt | None


NOT_FINITE = -1  # in place of a drawn token: that sequence's logits were not finite


class ModelRunner(Protocol):
    """Computes steps on one KV tensor. Loop thread only."""

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        """Run the model over the batch, writing KV of all new tokens.

        Returns:
            One drawn token id per sequence that has `sample`, in batch order; `NOT_FINITE` for
            one whose logits can't be drawn from (its turn fails, the others go on).
        """
        ...

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        """Copy all slots of all layers of one block to another (copy on write)."""
        ...
