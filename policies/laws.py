"""Laws that every plan must satisfy, whatever the policy."""

from collections.abc import Mapping
from typing import assert_never

from policies.plan import ContextPlan, KeepAll, KeepTurns, PlacementPlan, Summarize, SwapOut
from policies.views import ContextFacts, ConversationView, PlacementView


class BrokenLawError(Exception):
    """A policy's plan breaks a law: a bug of the policy. Nothing of the plan has been applied."""


def check_placement(view: PlacementView, plan: PlacementPlan) -> None:
    """Check that a plan names evictable contexts, each once, and no more than needed.

    Shared blocks do not count: they stay in place until their last owner is evicted.

    Raises:
        BrokenLawError: the message names the law.
    """
    left = {facts.session: facts for facts in view.contexts}
    freed = 0
    for action in plan.actions:
        if freed >= view.needed_blocks:
            raise BrokenLawError(f"{action.session} is evicted although enough blocks are freed")
        facts = left.pop(action.session, None)
        if facts is None:
            raise BrokenLawError(f"{action.session} is not in the view, or is named twice")
        if isinstance(action, SwapOut) and not view.swaps:
            raise BrokenLawError(f"{action.session} is swapped out although there is no tier")
        _check_order(facts, left)
        freed += facts.own_blocks
    if freed < view.needed_blocks and any(facts.blocks for facts in left.values()):
        raise BrokenLawError(
            f"{freed} of {view.needed_blocks} blocks are freed although other sessions hold more"
        )


def _check_order(facts: ContextFacts, left: Mapping[str, ContextFacts]) -> None:
    """Check that contexts with a queued turn, and those that free nothing, come last."""
    if facts.waiting and any(other.blocks and not other.waiting for other in left.values()):
        raise BrokenLawError(f"{facts.session} has a waiting turn and is evicted before idle ones")
    if not facts.own_blocks and any(
        other.own_blocks and other.waiting == facts.waiting for other in left.values()
    ):
        raise BrokenLawError(
            f"{facts.session} has no block of its own and is evicted before sessions that have"
        )


def check_context(view: ConversationView, plan: ContextPlan) -> None:
    """Check that a plan keeps existing turns, each once and in their order.

    No plan can drop the system prompt.

    Raises:
        BrokenLawError: the message names the law.
    """
    match plan:
        case KeepAll():
            pass
        case KeepTurns(turns=kept):
            if list(kept) != sorted(set(kept)):
                raise BrokenLawError(f"kept turns must be in rising order (got {list(kept)})")
            for turn in kept:
                if not 0 <= turn < len(view.turns):
                    raise BrokenLawError(
                        f"kept turns must be of the {len(view.turns)} in the view (got {turn})"
                    )
        case Summarize():
            if not 0 <= plan.keep_last <= len(view.turns):
                raise BrokenLawError(
                    f"keep_last must be 0 to {len(view.turns)} (got {plan.keep_last})"
                )
            if plan.summary_tokens < 1:
                raise BrokenLawError(
                    f"summary_tokens must be 1 or more (got {plan.summary_tokens})"
                )
            check_context(view, plan.fallback)
        case _:
            assert_never(plan)
