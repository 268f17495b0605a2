"""Learns the cost of a step from the steps that ran. Loop thread only.

Pacing derives from it how much prefill a step takes without delaying the streams beside it.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_PRIOR_S = (2e-3, 4e-4, 6e-7, 3e-7)  # a small model on two cores; the shape counts, not the size
_PRIOR_WEIGHT = 3e-4  # of one kind of step: decides only what no sample determines
_KINDS = 64  # kinds of steps that are remembered
_SAMPLES = 5  # of each kind; the median represents it, so two contended steps do no harm
_MEMORY = 100  # samples of a kind must lie within this many notes: the machine's speed may change
_HALF_LIFE = 32  # notes after which the weight of a kind without samples is halved
_LEAST_WEIGHT = 0.01  # of an old kind: the only data about prefill while all turns decode
_DOUBT = 0.2  # relative error at which a kind counts half
_REWEIGHTS = 3
_EXTREME = 1e4  # times the median: larger samples are clipped, to keep the fit well conditioned
_FIT_EVERY_S = 0.1  # of steps: a fit takes about 0.3 ms
_FIRST_ROWS, _TRUST = 64, 4  # rows of the first step; growth factor from the largest to the next
_FIRST_NOTES = 8  # each of these is followed by a fit


_CROWD = 0.5  # of the target: a crowd of prompts may stretch a step by this much
_CROWD_LEAST = 4  # a crowd is compared with at least this many streams: one prompt is none
_PART_OF_DECODE = 0.25  # minimum for prompts: starving them would not make streams faster
_BASES, _TARGETS = 40, 4  # a step without streams: its base is 2.5 % of it, within 4 targets

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """Load of a step.

    `rows`: tokens computed. `kv_tokens`: sum over its sequences of their context after the step.
    `pairs`: sum over rows of the tokens that each attends to.
    """

    rows: int
    kv_tokens: int
    pairs: int

    @classmethod
    def of(cls, first: int, count: int) -> "StepLoad":
        """Load of `count` tokens of one sequence after its first `first`."""
        pairs = count * first + count * (count + 1) // 2
        return cls(rows=count, kv_tokens=first + count, pairs=pairs)

    def __add__(self, other: "StepLoad") -> "StepLoad":
        return StepLoad(
            rows=self.rows + other.rows,
            kv_tokens=self.kv_tokens + other.kv_tokens,
            pairs=self.pairs + other.pairs,
        )


NO_LOAD = StepLoad(rows=0, kv_tokens=0, pairs=0)


@dataclass(frozen=True, slots=True)
class StepPrice:
    """Seconds per step, row, context token and pair; none is negative."""

    base_s: float
    row_s: float
    kv_token_s: float
    pair_s: float

    def seconds(self, load: StepLoad) -> float:
        """Predicted seconds of a step of this load."""
        return (
            self.base_s
            + self.row_s * load.rows
            + self.kv_token_s * load.kv_tokens
            + self.pair_s * load.pairs
        )


_PRIOR = StepPrice(*_PRIOR_S)


class _Sample(NamedTuple):
    noted_at: int
    load: StepLoad
    seconds: float

    @property
    def relative_cost(self) -> float:
        return self.seconds / _PRIOR.seconds(self.load)


class _Kind:
    """Steps of similar load."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES)
        self.seen_at = 0

    def add(self, sample: _Sample) -> None:
        """Add a sample, and drop outdated ones."""
        self.seen_at = sample.noted_at
        self._samples.append(sample)
        while self._samples[0].noted_at < self.seen_at - _MEMORY:
            self._samples.popleft()

    def typical(self) -> _Sample:
        """The sample of median cost per unit of the prior's cost, the lower of two."""
        ordered = sorted(self._samples, key=lambda sample: sample.relative_cost)
        return ordered[(len(ordered) - 1) // 2]


class StepCost:
    """Fits a `StepPrice` to the median step of each kind, weighting recent ones more.

    Least squares of the relative error without negative parts (Lawson & Hanson 1974), reweighted so
    that a kind measured only under contention counts little (Cauchy's weights; Holland & Welsch
    1977). Parts that no sample determines keep the prior's share of the whole.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, int, int], _Kind] = {}
        self._notes = 0
        self._unfitted_s = 0.0
        self._stale = False
        self._price = _PRIOR
        self._most_rows = 0

    @property
    def trusted_rows(self) -> int:
        """Number of rows up to which a prediction is reliable.

        The first steps must be small, since the prior may be wrong by a factor of a hundred.
        """
        return max(_FIRST_ROWS, _TRUST * self._most_rows)

    @property
    def price(self) -> StepPrice:
        """Current estimate of a step's cost."""
        if self._stale:
            self._stale, self._unfitted_s = False, 0.0
            self._price = self._fit()
        return self._price

    def note(self, load: StepLoad, seconds: float) -> None:
        """Record that a step of this load took `seconds`."""
        if load.rows <= 0 or seconds <= 0:
            return  # nothing ran, or the clock is too coarse
        self._notes += 1
        self._most_rows = max(self._most_rows, load.rows)
        # Within a kind: up to twice the rows, four times the context.
        key = (
            load.rows.bit_length(),
            load.kv_tokens.bit_length() // 2,
            load.pairs.bit_length() // 2,
        )
        kind = self._kinds.pop(key, None) or _Kind()
        kind.add(_Sample(self._notes, load, seconds))
        self._kinds[key] = kind  # last: the first one is the least recently seen
        if len(self._kinds) > _KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._unfitted_s += seconds
        self._stale |= self._notes <= _FIRST_NOTES or self._unfitted_s >= _FIT_EVERY_S

    def _fit(self) -> StepPrice:
        typical = [kind.typical() for kind in self._kinds.values()]
        loads = np.array([(1, x.rows, x.kv_tokens, x.pairs) for _, x, _ in typical], dtype=float)
        seconds = np.array([sample.seconds for sample in typical])
        scaled = loads * np.array(_PRIOR_S)
        # The prior's size is the median step's; the fit determines its parts.
        prior = scaled.sum(axis=1)
        scale = float(np.median(seconds / prior))
        seconds = np.clip(seconds, prior * scale / _EXTREME, prior * scale * _EXTREME)
        relative = scaled * scale / seconds[:, None]
        age = self._notes - np.array([kind.seen_at for kind in self._kinds.values()])
        weights = np.maximum(0.5 ** (age / _HALF_LIFE), _LEAST_WEIGHT)
        parts = _non_negative(relative, weights)
        for _ in range(_REWEIGHTS):
            ratios = np.maximum(relative @ parts, 1e-9)
            errors = np.maximum(ratios, 1 / ratios) - 1
            doubt = errors / max(_DOUBT, float(np.median(errors)))
            parts = _non_negative(relative, weights / (1 + doubt**2))
        return StepPrice(*(float(x) for x in parts * scale * np.array(_PRIOR_S)))


def _non_negative(relative: _Floats, weights: _Floats) -> _Floats:
    """Parts (none negative, drawn to 1) whose sum per row of `relative` is about 1."""
    count = relative.shape[1]
    gram = relative.T @ (relative * weights[:, None]) + _PRIOR_WEIGHT * np.eye(count)
    aim = relative.T @ weights + _PRIOR_WEIGHT
    free = np.ones(count, dtype=bool)
    parts = np.zeros(count)
    while free.any():
        solved = np.linalg.solve(gram[np.ix_(free, free)], aim[free])
        parts[:] = 0
        parts[free] = np.maximum(solved, 0)
        if (solved >= 0).all():
            break
        free[np.flatnonzero(free)[solved.argmin()]] = False
    return parts


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

    def refund(self, first: int, count: int) -> None:
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
