"""The placement policy `lru`: evicts the least recently used context first."""

from policies.plan import PlacementPlan
from policies.toolkit import evict_in_order
from policies.views import ContextFacts, PlacementView


class LeastRecentlyUsed:
    """Least recently used first; contexts whose client announced a return come last."""

    def plan(self, view: PlacementView) -> PlacementPlan:
        """Rank by last use."""

        def rank(facts: ContextFacts) -> tuple[float, ...]:
            return facts.is_expected(view.now_s), facts.last_used_s

        return evict_in_order(view, rank)
