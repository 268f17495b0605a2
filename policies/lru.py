"""The placement policy `lru`: who was used longest ago gives way first."""

from policies.order import give_way
from policies.plan import PlacementPlan
from policies.views import ContextFacts, PlacementView


class LeastRecentlyUsed:
    """Oldest use first; those whose client said that they will be back, after the others."""

    def plan(self, view: PlacementView) -> PlacementPlan:
        """Rank by last use."""

        def rank(facts: ContextFacts) -> tuple[float, ...]:
            return facts.is_expected(view.now_s), facts.last_used_s

        return give_way(view, rank)
