"""Limits the prefill of a step so that decoding streams are not held up. Pure."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from engine.step_cost import NO_LOAD, StepLoad, StepPrice

_CROWD = 0.5  # of the target: a crowd of prompts may stretch a step by this much
_CROWD_LEAST = 4  # a crowd is compared with at least this many streams: one prompt is none
_PART_OF_DECODE = 0.25  # minimum for prompts: starving them would not make streams faster
_BASES, _TARGETS = 40, 4  # a step without streams: its base is 2.5 % of it, within 4 targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Bounds of a step.

    `target_s`: time between two tokens of a stream, 0 for no bound. `trusted_rows`: number of new
    rows up to which the price is reliable.
    """

    max_rows: int
    target_s: float
    price: StepPrice
    trusted_rows: int


class StepBudget:
    """Rows and seconds left for prefill in a step; planned work is subtracted."""

    def __init__(self, pace: Pace, streams: Iterable[StepLoad], prompts: int) -> None:
        """Subtract the load of `streams`, the turns that decode in this step whatever it costs.

        `prompts`: turns that have no token yet.
        """
        decode = sum(streams, NO_LOAD)
        self._price = pace.price
        self.rows = pace.max_rows - decode.rows
        self._seconds = float("inf")
        if pace.target_s:
            self.rows = min(self.rows, pace.trusted_rows)
            self._seconds = _bound_s(pace, decode, prompts) - pace.price.seconds(decode)

    def fitting(self, first: int, count: int, share: float = 1.0) -> int:
        """How many of `count` tokens after a sequence's first `first` fit into a share of this."""
        most = min(count, int(self.rows * share))
        seconds = self._seconds * share
        return bisect_right(
            range(1, most + 1), seconds, key=lambda tokens: self._cost_s(first, tokens)
        )

    def spend(self, first: int, count: int) -> None:
        """Subtract the cost of `count` tokens after a sequence's first `first`."""
        self.rows -= count
        self._seconds -= self._cost_s(first, count)

    def give_back(self, first: int, count: int) -> None:
        """Undo `spend`."""
        self.rows += count
        self._seconds += self._cost_s(first, count)

    def _cost_s(self, first: int, count: int) -> float:
        if not count:
            return 0.0
        return self._price.seconds(StepLoad.of(first, count)) - self._price.base_s


def _bound_s(pace: Pace, decode: StepLoad, prompts: int) -> float:
    if decode.rows:
        # Where as many turns wait for a first token as for a next one, both waits count.
        crowd = min(1.0, (prompts - 1) / max(_CROWD_LEAST, decode.rows))
        stretched_s = pace.target_s * (1 + _CROWD * max(0.0, crowd))
        return max(stretched_s, pace.price.seconds(decode) * (1 + _PART_OF_DECODE))
    # No stream waits for a token, but a new turn or a cancellation may wait for the step's end.
    return max(pace.target_s, min(pace.price.base_s * _BASES, pace.target_s * _TARGETS))
