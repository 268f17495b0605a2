"""The placement policy `priority`: evicts the contexts of lowest client priority first."""

from policies.plan import PlacementPlan
from policies.toolkit import evict_in_order
from policies.views import ContextFacts, PlacementView


class PriorityFirst:
    """Low priority first; at equal priority as `lru`."""

    def plan(self, view: PlacementView) -> PlacementPlan:
        """Rank by priority, then by last use."""

        def rank(facts: ContextFacts) -> tuple[float, ...]:
            return facts.priority, facts.is_expected(view.now_s), facts.last_used_s

        return evict_in_order(view, rank)
