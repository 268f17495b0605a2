"""What policies are shown: frozen facts. Time comes in the view."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationView:
    """One session about to take a turn. All sizes in tokens.

    The model sees the system prompt, a summary if there is one (0: none), then `turns`, oldest
    first, each a whole turn (input and reply). The new turn brings `prompt_tokens`;
    `output_tokens` are reserved for its reply and what closes it. `limit_tokens` is what can be
    held: the least of the model's length, the pool and the session's caps.
    """

    system_tokens: int
    summary_tokens: int
    turns: Sequence[int]
    prompt_tokens: int
    output_tokens: int
    limit_tokens: int

    @property
    def context_tokens(self) -> int:
        """What the model sees before the new turn."""
        return self.system_tokens + self.summary_tokens + sum(self.turns)

    @property
    def needed_tokens(self) -> int:
        """What must be held at the end of the turn if nothing is dropped."""
        return self.context_tokens + self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFacts:
    """One context whose KV may be released: no turn of it runs. `waiting`: one is queued."""

    session: str
    blocks: int
    last_used_s: float
    waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementView:
    """The pool under pressure: `needed_blocks` more should become available."""

    now_s: float
    needed_blocks: int
    contexts: Sequence[ContextFacts]
