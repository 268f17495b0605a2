"""The context policy `token_budget` drops all turns beyond a budget of tokens."""

from dataclasses import dataclass

from policies.plan import ContextPlan, KeepAll, KeepTurns
from policies.toolkit import need_count
from policies.views import ConversationView


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """Keeps all up to `max_tokens` (None: the server's limit), beyond it the system prompt only."""

    max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check the parameter.

        Raises:
            ParameterError: it is invalid.
        """
        if self.max_tokens is not None:
            need_count("max_tokens", self.max_tokens)

    def plan(self, view: ConversationView) -> ContextPlan:
        """Drop all turns if the new one does not fit."""
        limit = min(view.limit_tokens, self.max_tokens or view.limit_tokens)
        if view.needed_tokens <= limit:
            return KeepAll()
        return KeepTurns(turns=(), summary=False)
