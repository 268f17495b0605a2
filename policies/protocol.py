"""The two families of policies. Both are pure: the same view gives the same plan."""

from typing import Protocol

from policies.plan import ContextPlan, PlacementPlan
from policies.views import ConversationView, PlacementView


class ContextPolicy(Protocol):
    """Decides, per session and before each turn, what the model sees of a conversation.

    A policy that may ask for summaries can say so by an attribute `summarizes` that is true: then
    it is also asked after a turn, as if the next one were like it, so that the summary is ready in
    time.
    """

    def plan(self, view: ConversationView) -> ContextPlan:
        """Plan one turn."""
        ...


class PlacementPolicy(Protocol):
    """Decides, for the whole pool, where KV lies under pressure.

    Plans obey `policies.laws.check_placement`.
    """

    def plan(self, view: PlacementView) -> PlacementPlan:
        """Decide what to evict so that `needed_blocks` become available, as far as possible."""
        ...
