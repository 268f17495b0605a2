"""Turns a ranking of contexts into a plan. Shared by the built-in placement policies."""

from collections.abc import Callable

from policies.plan import PlacementAction, PlacementPlan, ReleaseKv, SwapOut
from policies.views import ContextFacts, PlacementView

Rank = Callable[[ContextFacts], tuple[float, ...]]


def give_way(view: PlacementView, rank: Rank) -> PlacementPlan:
    """Evict contexts, lowest rank first, until enough blocks could become available.

    Regardless of rank, idle contexts come before queued ones, which are sure to return, and
    contexts with only shared blocks come last. No rank protects a context when nothing else is
    left: hints are soft.
    """
    actions: list[PlacementAction] = []
    freed = 0
    for facts in sorted(
        (facts for facts in view.contexts if facts.blocks),
        key=lambda facts: (facts.waiting, not facts.own_blocks, rank(facts), facts.session),
    ):
        if freed >= view.needed_blocks:
            break
        actions.append(_action(view, facts))
        freed += facts.own_blocks
    return PlacementPlan(actions=actions)


def _action(view: PlacementView, facts: ContextFacts) -> PlacementAction:
    if view.swaps and view.restore_s < view.recompute_s:
        return SwapOut(session=facts.session)
    return ReleaseKv(session=facts.session)
