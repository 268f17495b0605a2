"""Rate at which turns end, for `Retry-After`. Asyncio thread only."""

from collections import deque
from collections.abc import Callable
from math import ceil

_REMEMBERED = 32
_LONGEST_S = 60


class DrainRate:
    """Keeps the end times of the last turns, except those refused for lack of room.

    `ticks` returns monotonic seconds.
    """

    def __init__(self, ticks: Callable[[], float]) -> None:
        self._ticks = ticks
        self._ends_s: deque[float] = deque(maxlen=_REMEMBERED)

    def ended(self) -> None:
        """Record the end of a turn."""
        self._ends_s.append(self._ticks())

    def retry_after_s(self, places: int = 1) -> int:
        """Seconds until `places` are free, by the mean time between ends: 1 to 60."""
        if not self._ends_s:
            return 1
        mean_s = (self._ticks() - self._ends_s[0]) / len(self._ends_s)
        return min(max(ceil(mean_s * places), 1), _LONGEST_S)
