"""Batch cost correction: which numbers of rows suit the kernels. Loop thread only.

Kernels take rows in groups, so a step of 4 rows may cost less than one of 3: a linear model
(engine.step_cost) can't express that, and it matters for a few drafts.
"""

from collections import deque
from statistics import median

_MOST_ROWS = 64  # beyond this one group more or less is negligible
_SAMPLES = 8
_RANGE = (0.5, 2.0)  # values outside come from the machine, not the kernels
_HALF_LIFE = 256  # samples after which the weight of a row count's sample is halved


class RowFactors:
    """Ratio of measured to predicted seconds of steps, by number of rows."""

    def __init__(self) -> None:
        self._notes = 0
        self._samples: dict[int, deque[float]] = {}
        self._seen_at: dict[int, int] = {}

    def note(self, rows: int, seconds: float, foretold_s: float) -> None:
        """Record that a step of `rows` rows took `seconds`."""
        if rows > _MOST_ROWS or seconds <= 0 or foretold_s <= 0:
            return
        self._notes += 1
        low, high = _RANGE
        samples = self._samples.setdefault(rows, deque(maxlen=_SAMPLES))
        samples.append(min(max(seconds / foretold_s, low), high))
        self._seen_at[rows] = self._notes

    def of(self, rows: int) -> float:
        """Correction factor; 1 without samples, and again when they are old."""
        samples = self._samples.get(rows)
        if samples is None:
            return 1.0
        age = self._notes - self._seen_at[rows]
        told: float = median(samples) - 1.0
        return 1.0 + told * float(0.5 ** (age / _HALF_LIFE))
