"""The placement policy `lru`: who was used longest ago gives way first."""

from policies.plan import PlacementPlan, ReleaseKv
from policies.views import ContextFacts, PlacementView


class LeastRecentlyUsed:
    """Releases idle contexts, then queued ones (they are sure to return), oldest use first."""

    def plan(self, view: PlacementView) -> PlacementPlan:
        """Release until enough blocks could become available."""
        actions: list[ReleaseKv] = []
        freed = 0
        for facts in sorted(view.contexts, key=_precedence):
            if freed >= view.needed_blocks:
                break
            if facts.blocks:
                actions.append(ReleaseKv(session=facts.session))
                freed += facts.blocks
        return PlacementPlan(actions=actions)


def _precedence(facts: ContextFacts) -> tuple[bool, float, str]:
    return facts.waiting, facts.last_used_s, facts.session
