"""The context policy `none`: a conversation is never shortened."""

from policies.plan import ContextPlan, KeepAll
from policies.views import ConversationView


class KeepAllPolicy:
    """Keeps the whole conversation; turns that do not fit are refused elsewhere."""

    def plan(self, view: ConversationView) -> ContextPlan:  # noqa: ARG002 -- the Protocol's
        """Keep all turns."""
        return KeepAll()
