"""The placement policy `cost_aware` evicts the session whose KV is worth least per block.

The worth is the expected number of returns per second of holding, by the return rates in the view.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache

from policies.plan import PlacementPlan
from policies.toolkit import evict_in_order
from policies.views import (
    MOST_TURNS,
    ContextFacts,
    PlacementView,
    ReturnCounts,
    TurnKind,
    turn_kind,
)

# The prior: 30 % of sessions return; half of these within 135 s, two in three between 50 s and
# 370 s (log-normal). Sessions with more turns return more often.
_RETURNING = 0.3
_MEDIAN_S = 135.0
_SPREAD = 1.0
_FACTOR_OF_TURNS = (0.8, 1.3, 2.0, 2.0, 2.5)
_PRIOR_SESSIONS = 50  # weight of the shared curve's prior
_PRIOR_RETURNS = 5  # weight of a factor's prior
_MOST_LIKELY = 0.9


class ReArrivalRates:
    """Rates derived from one set of counts."""

    def __init__(self, counts: ReturnCounts) -> None:
        self._ages_s = counts.ages_s
        self._curve = _curve(counts)
        self._by_turns, self._by_size = _factors(counts, self._curve)
        self._rates: dict[TurnKind, Sequence[float]] = {}

    def per_second(self, kind: TurnKind, idle_s: float) -> float:
        """Expected returns per second of holding, of a session idle for `idle_s`.

        0 beyond the last span: there are no observations of such idle times.
        """
        if kind not in self._rates:
            factor = self._by_turns[kind.turns] * self._by_size.get(_size_of(kind), 1.0)
            chances = [min(_MOST_LIKELY, chance * factor) for chance in self._curve]
            self._rates[kind] = [*_best_ratios(self._ages_s, chances), 0.0]
        return self._rates[kind][bisect_right(self._ages_s, idle_s)]


def _curve(counts: ReturnCounts) -> list[float]:
    """Probability of a return in each span, given idle at its start; all kinds together."""
    curve: list[float] = []
    start_s = 0.0
    for span, end_s in enumerate(counts.ages_s):
        watched = sum(row[span] for row in counts.watched.values())
        returned = sum(row[span] for row in counts.returned.values())
        before, by_end = _returned_by(start_s), _returned_by(end_s)
        prior = (by_end - before) / (1 - before)
        curve.append((returned + _PRIOR_SESSIONS * prior) / (watched + _PRIOR_SESSIONS))
        start_s = end_s
    return curve


def _returned_by(age_s: float) -> float:
    if not age_s:
        return 0.0
    deviation = math.log(age_s / _MEDIAN_S) / _SPREAD
    return _RETURNING * (1 + math.erf(deviation / math.sqrt(2))) / 2


def _factors(
    counts: ReturnCounts, curve: Sequence[float]
) -> tuple[Mapping[int, float], Mapping[tuple[bool, int], float]]:
    """Ratios of seen to expected returns: by turns, then by size after the factor of turns."""
    expected = {
        kind: sum(seen * chance for seen, chance in zip(row, curve, strict=True))
        for kind, row in counts.watched.items()
    }
    seen = {kind: sum(counts.returned.get(kind, ())) for kind in expected}
    by_turns = {}
    for turns in range(1, MOST_TURNS + 1):
        kinds = [kind for kind in expected if kind.turns == turns]
        prior = _PRIOR_RETURNS * _FACTOR_OF_TURNS[turns - 1]
        by_turns[turns] = (sum(seen[kind] for kind in kinds) + prior) / (
            sum(expected[kind] for kind in kinds) + _PRIOR_RETURNS
        )
    by_size = {}
    for size in {_size_of(kind) for kind in expected}:
        kinds = [kind for kind in expected if _size_of(kind) == size]
        by_size[size] = (sum(seen[kind] for kind in kinds) + _PRIOR_RETURNS) / (
            sum(expected[kind] * by_turns[kind.turns] for kind in kinds) + _PRIOR_RETURNS
        )
    return by_turns, by_size


def _size_of(kind: TurnKind) -> tuple[bool, int]:
    # A first turn's input contains the system prompt, so its size has another meaning.
    return kind.turns == 1, kind.size


def _best_ratios(ages_s: Sequence[float], chances: Sequence[float]) -> list[float]:
    """For each span: maximum over ends of (probability of a return by then) / (time held)."""
    starts_s = [0.0, *ages_s]
    rates = []
    for first in range(len(ages_s)):
        still_idle, held_s, best = 1.0, 0.0, 0.0
        for span in range(first, len(ages_s)):
            length_s = ages_s[span] - starts_s[span]
            held_s += still_idle * length_s * (1 - chances[span] / 2)
            still_idle *= 1 - chances[span]
            best = max(best, (1 - still_idle) / held_s)
        rates.append(best)
    return rates


class CostAware:
    """Value = expected returns per second x seconds that a return then saves / blocks freed.

    Hints come first: a low priority, then no expected return, then the value.
    """

    def __init__(self) -> None:
        # Counts are equal only if they are one object. An engine passes the same object for some
        # seconds.
        self._rates_of = lru_cache(maxsize=1)(ReArrivalRates)

    def plan(self, view: PlacementView) -> PlacementPlan:
        """Rank by hints, then by value."""
        rates = self._rates_of(view.returns)

        def rank(facts: ContextFacts) -> tuple[float, ...]:
            kind = turn_kind(facts.turns, facts.new_tokens)
            returns = rates.per_second(kind, view.now_s - facts.last_used_s)
            value = returns * _saved_s(view, facts) / max(1, facts.own_blocks)
            return facts.priority, facts.is_expected(view.now_s), value, facts.last_used_s

        return evict_in_order(view, rank)


def _saved_s(view: PlacementView, facts: ContextFacts) -> float:
    """Extra cost of a return once the context's own blocks are evicted."""
    if view.swaps:
        return facts.own_blocks * min(view.restore_s, view.recompute_s)
    stored = min(facts.stored_blocks, facts.own_blocks)
    return stored * view.restore_s + (facts.own_blocks - stored) * view.recompute_s
