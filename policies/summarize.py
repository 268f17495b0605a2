"""The context policy `compaction` replaces older turns by a summary that the model writes."""

from dataclasses import dataclass
from typing import ClassVar

from policies.plan import ContextPlan, KeepAll, Summarize
from policies.sliding_window import SlidingWindow
from policies.toolkit import need_count
from policies.views import ConversationView

_OF_LIMIT = 0.8  # default threshold, equal to a sliding window's size after trimming


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Summarises all but the last `keep_turns` turns beyond `compact_threshold` tokens.

    The threshold is compared with what the model sees before it replies; None: four fifths of the
    server's limit. The summary has at most `summary_tokens`. Without one, a full window is trimmed
    as by `sliding_window`.
    """

    summarizes: ClassVar[bool] = True
    compact_threshold: int | None = None
    keep_turns: int = 4
    summary_tokens: int = 256

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            ParameterError: one of them is invalid.
        """
        if self.compact_threshold is not None:
            need_count("compact_threshold", self.compact_threshold)
        need_count("keep_turns", self.keep_turns, least=0)
        need_count("summary_tokens", self.summary_tokens, least=48)

    def plan(self, view: ConversationView) -> ContextPlan:
        """Plan a summary if it saves tokens."""
        fallback = SlidingWindow().plan(view)
        threshold = self.compact_threshold or int(view.limit_tokens * _OF_LIMIT)
        is_beyond = view.context_tokens + view.prompt_tokens > threshold
        if not is_beyond and isinstance(fallback, KeepAll):
            return KeepAll()
        room = view.limit_tokens - (
            view.system_tokens + self.summary_tokens + view.prompt_tokens + view.output_tokens
        )
        keep_last = self._keep_last(view, room)
        replaced = sum(view.turns[: len(view.turns) - keep_last]) + view.summary_tokens
        if room < 0 or keep_last == len(view.turns) or replaced <= self.summary_tokens:
            return fallback
        return Summarize(
            keep_last=keep_last,
            summary_tokens=self.summary_tokens,
            fallback=fallback,
            threshold=threshold,
        )

    def _keep_last(self, view: ConversationView, room: int) -> int:
        """The configured number of turns, or as many as fit beside the summary."""
        kept = 0
        for tokens in reversed(view.turns):
            if kept == self.keep_turns or tokens > room:
                break
            room -= tokens
            kept += 1
        return kept
