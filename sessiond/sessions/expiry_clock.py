"""Expiry clock: wall clock time that delays expiry after a jump. Asyncio thread only.

Leases, reservations, conversations and keys outlive a process, so they expire by the wall
clock, which may be set forward or back. An expiry caused by a jump alone does not count.
"""

from collections.abc import Callable

_JUMP_S = 1.0  # a slewed clock stays well below this between two reads
_NEVER = 0.0


class ExpiryClock:
    """`clock` returns unix seconds, `ticks` monotonic ones; a jump is a difference between them.

    `settle_s`: seconds that live owners need to renew their deadlines after a jump.
    """

    def __init__(
        self, clock: Callable[[], float], ticks: Callable[[], float], *, settle_s: float
    ) -> None:
        self._clock = clock
        self._ticks = ticks
        self._settle_s = settle_s
        self._offset_s = clock() - ticks()
        self._jumped_at: float | None = None

    def __call__(self) -> float:
        """Unix seconds; 0 for `settle_s` after a jump, so that nothing expires."""
        now, ticks = self._clock(), self._ticks()
        offset_s = now - ticks
        if abs(offset_s - self._offset_s) >= _JUMP_S:
            self._jumped_at = ticks
        self._offset_s = offset_s
        if self._jumped_at is not None and ticks - self._jumped_at < self._settle_s:
            return _NEVER
        return now
