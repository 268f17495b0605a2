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
            raise BrokenLawError(f"{action.session}: evicted after enough blocks were freed")
        facts = left.pop(action.session, None)
        if facts is None:
            raise BrokenLawError(f"{action.session}: not offered, or named twice")
        if isinstance(action, SwapOut) and not view.swaps:
            raise BrokenLawError(f"{action.session}: swapped out, but there is no tier")
        _check_order(facts, left)
        freed += facts.own_blocks
    if freed < view.needed_blocks and any(facts.blocks for facts in left.values()):
        raise BrokenLawError(f"{freed} of {view.needed_blocks} blocks, while others hold more")


def _check_order(facts: ContextFacts, left: Mapping[str, ContextFacts]) -> None:
    """Check that contexts with a queued turn, and those that free nothing, come last."""
    if facts.waiting and any(other.blocks and not other.waiting for other in left.values()):
        raise BrokenLawError(f"{facts.session}: its turn waits, and others are idle")
    if not facts.own_blocks and any(
        other.own_blocks and other.waiting == facts.waiting for other in left.values()
    ):
        raise BrokenLawError(f"{facts.session}: all it holds is shared, and others hold their own")


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
                raise BrokenLawError(f"turns {list(kept)} are not in rising order")
            for turn in kept:
                if not 0 <= turn < len(view.turns):
                    raise BrokenLawError(f"turn {turn} is not one of {len(view.turns)}")
        case Summarize():
            if not 0 <= plan.keep_last <= len(view.turns):
                raise BrokenLawError(f"the last {plan.keep_last} of {len(view.turns)} turns")
            if plan.summary_tokens < 1:
                raise BrokenLawError(f"a summary of {plan.summary_tokens} tokens")
            check_context(view, plan.fallback)
        case _:
            assert_never(plan)
