"""Speculative decoding: chooses drafts for a step. Loop thread only.

There is no draft model: drafts come from the session's own text (engine.ngram), and are verified
where that pays (engine.guesses).
"""

from collections.abc import Mapping, Sequence

from engine.guesses import Candidate, TurnGuesses, draft_counts
from engine.ids import TurnId
from engine.row_factors import RowFactors
from engine.slot import Slot
from engine.step_cost import NO_LOAD, StepLoad, StepPrice


class Speculation:
    """Drafts for turns that decode; off with `num_speculative_tokens` 0.

    `target_s` bounds steps that hold prompts; 0: no bound (see engine.pacing.Pace).
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
        self._factors = RowFactors()

    def drafts(
        self, work: Sequence[tuple[Slot, int]], price: StepPrice
    ) -> Mapping[TurnId, Sequence[int]]:
        """Return drafts of the turns that should verify some in a step of this work."""
        guessing = [
            (slot, slot.guesses)
            for slot, tokens in work
            if slot.guesses is not None and tokens == slot.context.pending == 1
        ]
        candidates = [
            # the last token that a turn may sample is no draft
            Candidate(
                guesses.chances(min(self._limit, slot.tokens_left - 1)), slot.context.table.kept_len
            )
            for slot, guesses in guessing
        ]
        if not any(candidate.chances for candidate in candidates):
            return {}
        loads = (StepLoad.of(slot.context.table.kept_len, tokens) for slot, tokens in work)
        load = sum(loads, NO_LOAD)
        most = min(self._max_draws - len(work), self._max_rows - load.rows)
        if self._target_s and load.rows > len(work):
            most = min(most, _fitting(candidates, self._target_s - price.seconds(load), price))
        counts = draft_counts(candidates, load, price, self._factors.of, most)
        return {
            slot.turn: _before_stop(guesses.tokens(count), slot.command.stop_ids)
            for (slot, guesses), count in zip(guessing, counts, strict=True)
            if count
        }

    def note(self, load: StepLoad, seconds: float, price: StepPrice) -> None:
        """A step of this load took `seconds`."""
        self._factors.note(load.rows, seconds, price.seconds(load))

    def learn(self, slot: Slot, tokens: Sequence[int]) -> None:
        """A continuing turn sampled these tokens; they are in its context."""
        if not self._limit:
            return
        if slot.guesses is None:
            slot.guesses = TurnGuesses(slot.context.ids)
        else:
            slot.guesses.learn(tokens)


def _fitting(candidates: Sequence[Candidate], seconds: float, price: StepPrice) -> int:
    """How many drafts fit beside prompts, which are planned up to the step's bound."""
    longest = max(candidate.context for candidate in candidates)
    each_s = price.row_s + price.pair_s * longest
    return int(max(0.0, seconds) / each_s) if each_s else 0


def _before_stop(tokens: Sequence[int], stop_ids: Sequence[int]) -> Sequence[int]:
    """Cut drafts before a stop id: tokens behind it are useless, the sample before finds it."""
    ends = (index for index, token in enumerate(tokens) if token in stop_ids)
    return tokens[: next(ends, len(tokens))]
