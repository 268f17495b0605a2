"""The placement policy `priority`: evicts the contexts of lowest client priority first."""

from policies.order import give_way
from policies.plan import PlacementPlan
from policies.views import ContextFacts, PlacementView


class PriorityFirst:
    """Low priority first; among equals as `lru`."""

    def plan(self, view: PlacementView) -> PlacementPlan:
        """Rank by priority, then by last use."""

        def rank(facts: ContextFacts) -> tuple[float, ...]:
            return facts.priority, facts.is_expected(view.now_s), facts.last_used_s

        return give_way(view, rank)
