"""The placement policy `ttl`: evicts the context whose expected return is furthest in the past."""

from policies.plan import PlacementPlan
from policies.toolkit import evict_in_order
from policies.views import ContextFacts, PlacementView

_TTL_S = 300.0  # nine in ten of the returning sessions return sooner


class TimeToLive:
    """A return is expected until the client's hint, or for `ttl_s` after the last use."""

    def __init__(self, ttl_s: float = _TTL_S) -> None:
        self._ttl_s = ttl_s

    def plan(self, view: PlacementView) -> PlacementPlan:
        """Rank by the end of that time, whether it has passed or not."""

        def rank(facts: ContextFacts) -> tuple[float, ...]:
            until_s = facts.expected_until_s
            return (facts.last_used_s + self._ttl_s if until_s is None else until_s,)

        return evict_in_order(view, rank)
