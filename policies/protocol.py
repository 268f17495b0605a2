"""Interfaces of the two kinds of policies. Both are pure: equal views give equal plans."""

from typing import Protocol

from policies.plan import ContextPlan, PlacementPlan
from policies.views import ConversationView, PlacementView


class ContextPolicy(Protocol):
    """Decides what the model sees of a conversation, for each session before each turn.

    A policy that may plan summaries can set a class attribute `summarizes` to true. Then it also
    plans after a turn, for a next turn of the same size, so that the summary is ready in time.
    """

    def plan(self, view: ConversationView) -> ContextPlan:
        """Plan one turn."""
        ...


class PlacementPolicy(Protocol):
    """Decides which contexts of the pool are evicted under pressure.

    Plans must satisfy `policies.laws.check_placement`.
    """

    def plan(self, view: PlacementView) -> PlacementPlan:
        """Choose contexts to evict so that `needed_blocks` become available, as far as possible."""
        ...
