"""The context policy `sliding_window` drops the oldest turns when the window is full."""

from dataclasses import dataclass

from policies.plan import KeepAll, KeepTurns
from policies.toolkit import keep_newest, need_count, need_share
from policies.views import ConversationView


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """Keeps the system prompt and the newest turns, whole.

    `max_tokens` limits what the model sees, the reply included; None: the server's limit. Beyond
    it, turns are dropped until the share `trim_to` of it is enough, so that a long chat is not
    trimmed on every turn. The system prompt is the attention sink (arXiv 2309.17453).
    """

    max_tokens: int | None = None
    trim_to: float = 0.8

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            ParameterError: one of them is invalid.
        """
        if self.max_tokens is not None:
            need_count("max_tokens", self.max_tokens)
        need_share("trim_to", self.trim_to)

    def plan(self, view: ConversationView) -> KeepAll | KeepTurns:
        """Drop the oldest turns if the new one does not fit."""
        limit = min(view.limit_tokens, self.max_tokens or view.limit_tokens)
        if view.needed_tokens <= limit:
            return KeepAll()
        return keep_newest(view, limit=limit, target=int(limit * self.trim_to))
