"""The placement policy `cost_aware`: evicts the KV of least value per block first."""

from functools import lru_cache

from policies.order import give_way
from policies.plan import PlacementPlan
from policies.return_rate import ReturnRates
from policies.returns import turn_kind
from policies.views import ContextFacts, PlacementView


class CostAware:
    """Value = expected returns per second x seconds that a return then saves / blocks freed.

    Hints come first: a low priority, then no expected return, then the value.
    """

    def __init__(self) -> None:
        # Counts are equal only if they are one object, and an engine passes the same object for a
        # while.
        self._rates_of = lru_cache(maxsize=1)(ReturnRates)

    def plan(self, view: PlacementView) -> PlacementPlan:
        """Rank by hints, then by value."""
        rates = self._rates_of(view.returns)

        def rank(facts: ContextFacts) -> tuple[float, ...]:
            kind = turn_kind(facts.turns, facts.new_tokens)
            returns = rates.per_second(kind, view.now_s - facts.last_used_s)
            value = returns * _saved_s(view, facts) / max(1, facts.own_blocks)
            return facts.priority, facts.is_expected(view.now_s), value, facts.last_used_s

        return give_way(view, rank)


def _saved_s(view: PlacementView, facts: ContextFacts) -> float:
    """Extra cost of a return once the context's own blocks are evicted."""
    if view.swaps:
        return facts.own_blocks * min(view.restore_s, view.recompute_s)
    stored = min(facts.stored_blocks, facts.own_blocks)
    return stored * view.restore_s + (facts.own_blocks - stored) * view.recompute_s
