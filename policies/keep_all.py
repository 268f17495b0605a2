"""The context policy `none`: a conversation is never shortened."""

from policies.plan import ContextPlan, KeepAll
from policies.views import ConversationView


class KeepAllPolicy:
    """Shows the model everything; what does not fit is refused elsewhere."""

    def plan(self, view: ConversationView) -> ContextPlan:  # noqa: ARG002 -- the Protocol's
        """Keep all."""
        return KeepAll()
