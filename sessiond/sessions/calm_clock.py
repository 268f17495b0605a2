"""The wall clock, for saying that somebody's time is over. Asyncio thread only.

What lasts beyond a process (leases, reservations, conversations, keys) has its end in wall clock
time, and a wall clock jumps: it is set right, or wrong. What ended only because it jumped has not.
"""

from collections.abc import Callable

_JUMP_S = 1.0  # a clock that is slewed stays well below that between two looks
_NEVER = 0.0


class CalmClock:
    """`clock` gives unix seconds, `ticks` monotonic ones; a jump is what only one of them made.

    `calm_s`: how long those that live need to tell so, by a time of after the jump.
    """

    def __init__(
        self, clock: Callable[[], float], ticks: Callable[[], float], *, calm_s: float
    ) -> None:
        self._clock = clock
        self._ticks = ticks
        self._calm_s = calm_s
        self._offset_s = clock() - ticks()
        self._jumped_at: float | None = None

    def __call__(self) -> float:
        """Unix seconds; 0 for `calm_s` after a jump: nothing is over by then."""
        now, ticks = self._clock(), self._ticks()
        offset_s = now - ticks
        if abs(offset_s - self._offset_s) >= _JUMP_S:
            self._jumped_at = ticks
        self._offset_s = offset_s
        if self._jumped_at is not None and ticks - self._jumped_at < self._calm_s:
            return _NEVER
        return now
