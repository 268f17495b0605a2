"""The context policy `last_turns` keeps a number of past turns, and no more than fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from policies.plan import ContextPlan, KeepAll, KeepTurns
from policies.toolkit import keep_newest, need_count, need_share
from policies.views import ConversationView


@dataclass(frozen=True, slots=True, kw_only=True)
class LastTurns:
    """Keeps the system prompt and at most `turns` turns before the new one.

    Beyond that number the oldest are dropped until the share `trim_to` of it is left, so that a
    long chat is not trimmed on every turn (1: `turns` are left). `max_tokens` limits what the model
    sees, the reply included; None: the server's limit. Turns beyond it are dropped in the same way.
    """

    turns: int = 20
    trim_to: float = 0.8
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            ParameterError: one of them is invalid.
        """
        need_count("turns", self.turns, least=0)
        need_share("trim_to", self.trim_to)
        if self.max_tokens is not None:
            need_count("max_tokens", self.max_tokens)

    def plan(self, view: ConversationView) -> ContextPlan:
        """Drop the oldest turns if there are too many, or too long ones."""
        limit = min(view.limit_tokens, self.max_tokens or view.limit_tokens)
        fits = view.needed_tokens <= limit
        count = len(view.turns)
        if count <= self.turns and fits:
            return KeepAll()
        newest: Sequence[int] = range(count)
        if not fits:
            newest = keep_newest(view, limit=limit, target=int(limit * self.trim_to)).turns
        if count > self.turns:
            newest = newest[max(0, len(newest) - ceil(self.turns * self.trim_to)) :]
        return KeepTurns(turns=tuple(newest), summary=False)
