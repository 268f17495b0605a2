"""What one step of the model is given and gives back. No torch: the fake model uses it too."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.ids import BlockId
from engine.memory.page_table import PageEntry
from engine.messages import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAt:
    """Draw a token from the logits of each of the sequence's last `drafts` + 1 new tokens.

    A draw depends on (`sampling.seed`, its output index) and its logits only, so a preempted or
    recomputed turn draws the same token again, and so does one whose tokens were guessed.
    `output_index` is that of the first draw. The last `drafts` new tokens are guesses: the draw
    before each tells whether it is true.
    """

    sampling: Sampling
    output_index: int
    drafts: int = 0

    @property
    def each(self) -> "Iterator[SampleAt]":
        """Its draws, one by one."""
        for index in range(self.output_index, self.output_index + self.drafts + 1):
            yield SampleAt(sampling=self.sampling, output_index=index)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStep:
    """What one sequence does in a step: compute KV of `token_ids`, maybe draw a token.

    `entries` is the page table up to and including the new tokens, whose slots are the last
    `len(token_ids)` valid ones. `first_position` is the position of the first new token (slot
    index is not position: see engine.memory.page_table). Drafts are the last of `token_ids`.
    """

    token_ids: Sequence[int]
    first_position: int
    entries: Sequence[PageEntry]
    sample: SampleAt | None

    @property
    def drafts(self) -> Sequence[int]:
        """Those of `token_ids` that are guesses."""
        count = self.sample.drafts if self.sample else 0
        return self.token_ids[len(self.token_ids) - count :]


NOT_FINITE = -1  # in place of a drawn token: that sequence's logits were not finite


class ModelRunner(Protocol):
    """Computes steps on one KV tensor. Loop thread only."""

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        """Run the model over the batch, writing KV of all new tokens.

        Returns:
            Of each sequence that has `sample` one drawn token id per draw, in batch order;
            `NOT_FINITE` for logits that can't be drawn from (its turn fails, the others go on).
            What follows the first draw that differs from its draft means nothing.

        Raises:
            MemoryError: there is not enough for so large a step; a smaller one may be tried.
            DeviceLostError: no step will ever work again in this process.
            Exception: whatever else goes wrong. Nobody trusts the KV that the step read.
        """
        ...

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        """Copy all slots of all layers of one block to another (copy on write)."""
        ...

    def zero_block(self, block: BlockId) -> None:
        """Overwrite all slots of all layers of one block."""
        ...


def true_draws(step: SequenceStep, draws: Sequence[int]) -> Sequence[int]:
    """Return the draws of one sequence that stand: up to the first that differs from its draft.

    Each of them comes of the logits after true tokens only, so drafting changes no token
    (speculative decoding, arXiv 2211.17192, with draws fixed by their index).
    """
    for index, draft in enumerate(step.drafts):
        if draws[index] != draft:
            return draws[: index + 1]
    return draws
