"""What every plan must satisfy, whichever policy made it."""

from policies.plan import PlacementPlan
from policies.views import PlacementView


class BrokenLawError(Exception):
    """A policy's plan breaks a law: a bug of the policy. Nothing of the plan has been applied."""


def check_placement(view: PlacementView, plan: PlacementPlan) -> None:
    """Check that a plan names what may give way, each once, and no more than is needed.

    Raises:
        BrokenLawError: says which law.
    """
    blocks = {facts.session: facts.blocks for facts in view.contexts}
    freed = 0
    for action in plan.actions:
        if freed >= view.needed_blocks:
            raise BrokenLawError(f"{action.session}: enough was released before it")
        if action.session not in blocks:
            raise BrokenLawError(f"{action.session}: not offered, or released twice")
        freed += blocks.pop(action.session)
    if freed < view.needed_blocks and any(blocks.values()):
        raise BrokenLawError(f"{freed} of {view.needed_blocks} blocks, while others hold more")
