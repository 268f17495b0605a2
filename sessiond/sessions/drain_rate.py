"""How fast turns end, for `Retry-After`. Pure; time is passed in."""

from collections import deque
from math import ceil

_REMEMBERED = 32
_LONGEST_S = 60


class DrainRate:
    """Remembers when the last turns ended."""

    def __init__(self) -> None:
        self._ends_s: deque[float] = deque(maxlen=_REMEMBERED)

    def ended(self, now_s: float) -> None:
        """A turn ended."""
        self._ends_s.append(now_s)

    def retry_after_s(self, now_s: float, places: int = 1) -> int:
        """When so many places will be free, by the mean time between ends: 1 to 60 seconds."""
        if not self._ends_s:
            return 1
        mean_s = (now_s - self._ends_s[0]) / len(self._ends_s)
        return min(max(ceil(mean_s * places), 1), _LONGEST_S)
