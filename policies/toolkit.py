"""Functions for built-in policies and those of other packages. Pure.

Checks of parameters, the newest turns that fit, and a plan from an eviction order.
"""

from collections.abc import Callable

from policies.plan import KeepTurns, PlacementAction, PlacementPlan, ReleaseKv, SwapOut
from policies.views import ContextFacts, ConversationView, PlacementView


class ParameterError(ValueError):
    """A policy lacks the parameter, or does not accept its value."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name} must be {allowed} (got {value!r})")
        self.name = name
        self.value = value
        self.allowed = allowed


def need_count(name: str, value: object, *, least: int = 1) -> None:
    """Check a whole number.

    Raises:
        ParameterError: it is not a whole number, or less than `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ParameterError(name, value, f"a whole number of {least} or more")


def need_share(name: str, value: object) -> None:
    """Check a share.

    Raises:
        ParameterError: it is not a number above 0, up to 1.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise ParameterError(name, value, "a number above 0, up to 1")


def keep_newest(view: ConversationView, *, limit: int, target: int) -> KeepTurns:
    """Keep as many of the newest turns as fit `target` tokens beside the new turn and the prefix.

    If these alone exceed `target`, `limit` applies instead. A summary that does not fit is dropped.
    """
    fixed = view.system_tokens + view.prompt_tokens + view.output_tokens
    summary = fixed + view.summary_tokens <= limit
    fixed += view.summary_tokens if summary else 0
    room = (target if fixed <= target else limit) - fixed
    first = len(view.turns)
    while first and view.turns[first - 1] <= room:
        first -= 1
        room -= view.turns[first]
    return KeepTurns(turns=tuple(range(first, len(view.turns))), summary=summary)


Rank = Callable[[ContextFacts], tuple[float, ...]]


def evict_in_order(view: PlacementView, rank: Rank) -> PlacementPlan:
    """Evict contexts, lowest rank first, until enough blocks could become available.

    Regardless of rank, idle contexts come before those with a queued turn, and among them contexts
    with shared blocks only come last. No rank excludes a context: hints are soft.
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
