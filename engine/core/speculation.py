"""Drafts of a step: tokens that are verified beside the true ones. Loop thread only.

`BatchCostCorrection` corrects the batch cost for the row counts that suit the kernels.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

from engine.core.draft_budget import DraftCandidate, TurnDrafts, draft_counts
from engine.core.slot import Slot
from engine.core.step_cost import NO_LOAD, StepLoad, StepPrice
from engine.ids import TurnId

_MOST_ROWS = 64  # beyond this one group more or less is negligible
_SAMPLES = 8
_RANGE = (0.5, 2.0)  # values outside come from the machine, not the kernels
_HALF_LIFE = 256  # samples after which the weight of a row count's sample is halved


class Speculation:
    """Drafts for turns that decode, at most `num_speculative_tokens` each.

    `target_s` bounds steps that hold prompts; 0: no bound (see engine.core.step_cost.Pace).
    """

    def __init__(
        self,
        *,
        num_speculative_tokens: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        target_s: float,
    ) -> None:
        self._limit = num_speculative_tokens
        self._max_draws = max_num_seqs + num_speculative_tokens  # the size that was measured
        self._max_rows = max_num_batched_tokens
        self._target_s = target_s
        self._cost_correction = BatchCostCorrection()

    def drafts(
        self, work: Sequence[tuple[Slot, int]], price: StepPrice
    ) -> Mapping[TurnId, Sequence[int]]:
        """Return drafts of the turns that should verify some in a step of this work."""
        drafting = [
            (slot, slot.turn_drafts)
            for slot, tokens in work
            if slot.turn_drafts is not None and tokens == slot.context.pending == 1
        ]
        candidates = [
            # no draft for the last token that a turn may sample
            DraftCandidate(
                turn_drafts.acceptance(min(self._limit, slot.tokens_left - 1)),
                slot.context.table.kept_len,
            )
            for slot, turn_drafts in drafting
        ]
        if not any(candidate.acceptance for candidate in candidates):
            return {}
        loads = (StepLoad.of(slot.context.table.kept_len, tokens) for slot, tokens in work)
        load = sum(loads, NO_LOAD)
        most = min(self._max_draws - len(work), self._max_rows - load.rows)
        if self._target_s and load.rows > len(work):
            most = min(most, _fitting(candidates, self._target_s - price.seconds(load), price))
        counts = draft_counts(candidates, load, price, self._cost_correction.of, most)
        return {
            slot.turn: _before_stop(turn_drafts.tokens(count), slot.command.stop_ids)
            for (slot, turn_drafts), count in zip(drafting, counts, strict=True)
            if count
        }

    def note(self, load: StepLoad, seconds: float, price: StepPrice) -> None:
        """Record that a step of this load took `seconds`."""
        self._cost_correction.note(load.rows, seconds, price.seconds(load))

    def learn(self, slot: Slot, tokens: Sequence[int]) -> None:
        """Record the sampled tokens of a continuing turn; they are in its context."""
        if slot.turn_drafts is None:
            slot.turn_drafts = TurnDrafts(slot.context.ids)
        else:
            slot.turn_drafts.learn(tokens)


def _fitting(candidates: Sequence[DraftCandidate], seconds: float, price: StepPrice) -> int:
    """How many drafts fit beside prompts, which are planned up to the step's bound."""
    longest = max(candidate.context for candidate in candidates)
    each_s = price.row_s + price.pair_s * longest
    return int(max(0.0, seconds) / each_s) if each_s else 0


def _before_stop(tokens: Sequence[int], stop_ids: Sequence[int]) -> Sequence[int]:
    """Cut drafts before a stop id: the sample there ends the turn without a draft."""
    ends = (index for index, token in enumerate(tokens) if token in stop_ids)
    return tokens[: next(ends, len(tokens))]


class BatchCostCorrection:
    """Ratio of measured to predicted seconds of steps, by number of rows."""

    def __init__(self) -> None:
        self._notes = 0
        self._samples: dict[int, deque[float]] = {}
        self._seen_at: dict[int, int] = {}

    def note(self, rows: int, seconds: float, predicted_s: float) -> None:
        """Record that a step of `rows` rows took `seconds`."""
        if rows > _MOST_ROWS or seconds <= 0 or predicted_s <= 0:
            return
        self._notes += 1
        low, high = _RANGE
        samples = self._samples.setdefault(rows, deque(maxlen=_SAMPLES))
        samples.append(min(max(seconds / predicted_s, low), high))
        self._seen_at[rows] = self._notes

    def of(self, rows: int) -> float:
        """Correction factor; 1 without samples, and again when they are old."""
        samples = self._samples.get(rows)
        if samples is None:
            return 1.0
        age = self._notes - self._seen_at[rows]
        deviation: float = median(samples) - 1.0
        return 1.0 + deviation * float(0.5 ** (age / _HALF_LIFE))
