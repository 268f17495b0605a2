"""What policies are shown: frozen facts. Time comes in the view."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationView:
    """One session about to take a turn. All sizes in tokens; `limit_tokens` is what can be held."""

    context_tokens: int
    prompt_tokens: int
    output_tokens: int
    limit_tokens: int


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
