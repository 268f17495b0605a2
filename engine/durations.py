"""How long something took, many times, in buckets: a histogram as Prometheus counts. Pure."""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

STEP_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
TOKEN_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
RECLAIM_BOUNDS_S = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1, 1.0,
)  # fmt: skip
MOVE_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took: `counts` by the first of `bounds_s` that was not exceeded.

    The last count is of what exceeded all bounds. Without bounds nothing was counted.
    """

    bounds_s: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    total_s: float = 0.0

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)


class Durations:
    """Counts observations by the first bound that they do not exceed. One thread only."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = tuple(bounds_s)
        self._counts = [0] * (len(self._bounds_s) + 1)
        self._total_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """It took so long, `count` times."""
        self._counts[bisect_left(self._bounds_s, seconds)] += count
        self._total_s += seconds * count

    def told(self) -> Times:
        """What has been counted up to now."""
        return Times(bounds_s=self._bounds_s, counts=tuple(self._counts), total_s=self._total_s)
