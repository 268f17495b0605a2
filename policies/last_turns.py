"""The context policy `last_turns` keeps a fixed number of past turns, whatever their size."""

from dataclasses import dataclass
from math import ceil

from policies.plan import ContextPlan, KeepAll, KeepTurns
from policies.toolkit import keep_newest, need_count, need_share
from policies.views import ConversationView


@dataclass(frozen=True, slots=True, kw_only=True)
class LastTurns:
    """Keeps the system prompt and at most `turns` turns before the new one.

    Beyond that number the oldest are dropped until the share `trim_to` of it is left, so that a
    long chat is not trimmed on every turn (1: `turns` are left). Turns that do not fit are dropped,
    too.
    """

    turns: int = 20
    trim_to: float = 0.8

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            ParameterError: one of them is invalid.
        """
        need_count("turns", self.turns, least=0)
        need_share("trim_to", self.trim_to)

    def plan(self, view: ConversationView) -> ContextPlan:
        """Drop the oldest turns if there are too many, or too long ones."""
        fits = view.needed_tokens <= view.limit_tokens
        count = len(view.turns)
        if count <= self.turns and fits:
            return KeepAll()
        newest = range(count)
        if not fits:
            target = int(view.limit_tokens * self.trim_to)
            newest = range(
                count - len(keep_newest(view, limit=view.limit_tokens, target=target).turns), count
            )
        if count > self.turns:
            newest = newest[max(0, len(newest) - ceil(self.turns * self.trim_to)) :]
        return KeepTurns(turns=tuple(newest), summary=False)
