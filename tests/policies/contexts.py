"""Facts and plans in few words."""

from policies.plan import SwapOut
from policies.protocol import PlacementPolicy
from policies.views import ContextFacts, PlacementView


def facts(session: str, last_used_s: float = 0.0, **fields: object) -> ContextFacts:
    fields = {"blocks": 2, "waiting": False} | fields
    return ContextFacts(session=session, last_used_s=last_used_s, **fields)


def order(
    policy: PlacementPolicy, *contexts: ContextFacts, needed: int = 99, **fields: object
) -> list[str]:
    """The sessions that give way, in order; swapped out ones with a mark."""
    fields = {"now_s": 100.0} | fields
    view = PlacementView(needed_blocks=needed, contexts=contexts, **fields)
    actions = policy.plan(view).actions
    return [
        f"{action.session} to a tier" if isinstance(action, SwapOut) else action.session
        for action in actions
    ]
