"""Histogram of values in buckets, as Prometheus counts. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import floor, log10

import msgspec


def bounds_within(first: float, last: float, error: float) -> tuple[float, ...]:
    """Bounds from `first` to at least `last` that keep quantiles within a relative error.

    Prometheus interpolates within a bucket, so it is wrong by the bucket's width at most, which is
    `error` of its lower bound. Bounds have three digits.
    """
    bounds = [first]
    while bounds[-1] < last:
        place = 2 - floor(log10(bounds[-1]))
        scaled = bounds[-1] * (1 + error) * 10.0**place
        bounds.append(round(floor(scaled) / 10.0**place, max(0, place)))
    return tuple(bounds)


STEP_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
TOKEN_SECONDS = bounds_within(0.001, 80.0, 0.25)
RECLAIM_SECONDS = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1, 1.0,
)  # fmt: skip
MOVE_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """`counts` by the first of `bounds` that was not exceeded; the last counts the rest.

    `total`: sum of the values.
    """

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    total: float = 0.0

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)


class Histogram:
    """Counts values in buckets. One thread only."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Add a value, `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def snapshot(self) -> Buckets:
        """Snapshot of the counts."""
        return Buckets(bounds=self._bounds, counts=tuple(self._counts), total=self._total)


def empty(bounds: Sequence[float]) -> Buckets:
    """Buckets without values."""
    return Histogram(bounds).snapshot()


def added(buckets: Iterable[Buckets]) -> Buckets:
    """Sum of several with the same bounds; at least one is required."""
    every = list(buckets)
    return Buckets(
        bounds=every[0].bounds,
        counts=tuple(map(sum, zip(*(one.counts for one in every), strict=True))),
        total=sum(one.total for one in every),
    )
