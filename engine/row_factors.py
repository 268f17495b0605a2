"""Which numbers of rows suit the kernels. Loop thread only.

Kernels take rows in groups, so a step of 4 rows may cost less than one of 3: a straight line
(engine.step_cost) can't tell, and among a few drafts that decides.
"""

from collections import deque
from statistics import median

_MOST_ROWS = 64  # beyond this a group more or less hardly shows
_SAMPLES = 8
_RANGE = (0.5, 2.0)  # what lies outside was the machine, not the kernels
_HALF_LIFE = 256  # notes after which half of what a row count told is forgotten


class RowFactors:
    """Seconds that steps of so many rows took, per second that the line foretold."""

    def __init__(self) -> None:
        self._notes = 0
        self._samples: dict[int, deque[float]] = {}
        self._seen_at: dict[int, int] = {}

    def note(self, rows: int, seconds: float, foretold_s: float) -> None:
        """A step of so many rows took `seconds`."""
        if rows > _MOST_ROWS or seconds <= 0 or foretold_s <= 0:
            return
        self._notes += 1
        low, high = _RANGE
        samples = self._samples.setdefault(rows, deque(maxlen=_SAMPLES))
        samples.append(min(max(seconds / foretold_s, low), high))
        self._seen_at[rows] = self._notes

    def of(self, rows: int) -> float:
        """What to multiply with; 1 where nothing is known, and again when it is long ago."""
        samples = self._samples.get(rows)
        if samples is None:
            return 1.0
        age = self._notes - self._seen_at[rows]
        told: float = median(samples) - 1.0
        return 1.0 + told * float(0.5 ** (age / _HALF_LIFE))
