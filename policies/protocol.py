"""The two families of policy. Both are pure: the same view gives the same plan."""

from typing import Protocol

from policies.plan import ContextPlan, PlacementPlan
from policies.views import ConversationView, PlacementView


class ContextPolicy(Protocol):
    """Decides, per session and before each turn, what the model sees of a conversation.

    One that asks for summaries may say so by an attribute `summarizes` that is true: then it is
    asked after a turn, too, as if the next one were like it, so that the summary is there in time.
    """

    def plan(self, view: ConversationView) -> ContextPlan:
        """Decide about one turn."""
        ...


class PlacementPolicy(Protocol):
    """Decides, for the whole pool, where KV lies under pressure.

    Plans obey `policies.laws.check_placement`.
    """

    def plan(self, view: PlacementView) -> PlacementPlan:
        """Decide what gives way so that `needed_blocks` become available, as far as possible."""
        ...
