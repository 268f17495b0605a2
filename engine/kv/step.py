"""Input and output of one step of the model. No torch: the fake model uses it too."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.ids import BlockId
from engine.ipc.messages import Sampling
from engine.kv.page_table import PageEntry
from engine.kv.token_counts import TokenCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAt:
    """Sample a token from the logits of each of the sequence's last `drafts` + 1 new tokens.

    A sample depends on (`sampling.seed`, its output index) and its logits only, so a preempted or
    recomputed turn samples the same token again, with or without drafts. `output_index` is that of
    the first sample. The last `drafts` new tokens are drafts: the sample before each verifies it.
    `counts`: of the context up to the first sample, if the sampling has penalties.
    """

    sampling: Sampling
    output_index: int
    drafts: int = 0
    counts: TokenCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSample:
    """Sample one token, after the first `after` of a step's drafts."""

    sampling: Sampling
    output_index: int
    counts: TokenCounts | None = None
    after: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStep:
    """One sequence's part of a step: compute KV of `token_ids`, maybe sample a token."""

    token_ids: Sequence[int]
    first_position: int
    entries: Sequence[PageEntry]
    sample: SampleAt | None

    @property
    def samples(self) -> "Iterator[OneSample]":
        """Its samples, one by one."""
        if (sample := self.sample) is None:
            return
        for number in range(sample.drafts + 1):
            yield OneSample(
                sampling=sample.sampling,
                output_index=sample.output_index + number,
                counts=sample.counts,
                after=self.drafts[:number],
            )

    @property
    def drafts(self) -> Sequence[int]:
        """The drafts of `token_ids`."""
        count = self.sample.drafts if self.sample else 0
        return self.token_ids[len(self.token_ids) - count :]


NOT_FINITE = -1  # in place of a sampled token: that sequence's logits were not finite


class ModelRunner(Protocol):
    """Computes steps on one KV tensor. Loop thread only."""

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        """Run the model over the batch, writing KV of all new tokens.

        Returns:
            For each sequence that has `sample` one token id per sample, in batch order;
            `NOT_FINITE` for logits that can't be sampled (only that turn fails).
            Results after the first one that differs from its draft are meaningless.

        Raises:
            MemoryError: the device's memory does not suffice; a smaller step may be tried.
            DeviceLostError: no later step can succeed in this process.
            Exception: any other error. The KV that the step read is discarded.
        """
        ...

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        """Copy all slots of all layers of one block to another (copy on write)."""
        ...

    def zero_block(self, block: BlockId) -> None:
        """Overwrite all slots of all layers of one block."""
        ...


def true_draws(step: SequenceStep, draws: Sequence[int]) -> Sequence[int]:
    """Return the valid samples of one sequence: up to the first that differs from its draft.

    Each comes from the logits after true tokens only, so drafts change no token (speculative
    decoding, arXiv 2211.17192, with samples fixed by their index).
    """
    for index, draft in enumerate(step.drafts):
        if draws[index] != draft:
            return draws[: index + 1]
    return draws
