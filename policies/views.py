"""Inputs of policies: frozen values about turns, sessions and return rates, with the time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MOST_TURNS = 5
"""Sessions with more turns than this count as one kind."""

_LEAST_TOKENS_BITS = 7  # below 128 tokens: one level (typed lines)
_MOST_TOKENS_LEVEL = 7  # 8,192 tokens and more: one level (documents)


class TurnKind(NamedTuple):
    """Kind of a session: its `turns` so far, and the size of its last turn's input."""

    turns: int
    size: int


def turn_kind(turns: int, new_tokens: int) -> TurnKind:
    """The kind of a session after `turns` turns, the last of which added `new_tokens`."""
    level = max(0, new_tokens.bit_length() - _LEAST_TOKENS_BITS)
    return TurnKind(max(1, min(turns, MOST_TURNS)), min(level, _MOST_TOKENS_LEVEL))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReturnCounts:
    """Counts since the engine's start, per kind and per span of idle time.

    Span i ends at `ages_s[i]` and begins where the one before it ends. `watched[kind][i]`: how
    often a session was idle at the span's start and the outcome of the span is known (it returned,
    or was still idle at the end); `returned[kind][i]`: how often it returned in the span. Counts
    are equal only if they are one object, so that derived values can be cached.
    """

    ages_s: Sequence[float]
    watched: Mapping[TurnKind, Sequence[int]]
    returned: Mapping[TurnKind, Sequence[int]]


NOTHING_SEEN = ReturnCounts(
    # powers of the square root of two, from 8 s to an hour and a half
    ages_s=tuple(float(round(8 * 2 ** (step / 2))) for step in range(20)),
    watched={},
    returned={},
)
"""Counts of an engine that has just started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationView:
    """One session about to take a turn. All sizes in tokens.

    The model sees the system prompt, a summary if there is one (0: none), then `turns`, oldest
    first, each a whole turn (input and reply). The new turn adds `prompt_tokens`; `output_tokens`
    are reserved for its reply and closing tokens. `limit_tokens` is the least of the model's
    length, the pool and the session's caps.
    """

    system_tokens: int
    summary_tokens: int
    turns: Sequence[int]
    prompt_tokens: int
    output_tokens: int
    limit_tokens: int

    @property
    def context_tokens(self) -> int:
        """Tokens that the model sees before the new turn."""
        return self.system_tokens + self.summary_tokens + sum(self.turns)

    @property
    def needed_tokens(self) -> int:
        """Tokens at the end of the turn if nothing is dropped."""
        return self.context_tokens + self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFacts:
    """One context whose KV may be evicted: none of its turns runs.

    Of its `blocks`, `shared_blocks` are shared with others (evicting them here frees nothing), and
    `stored_blocks` have a copy in a tier. `waiting`: a turn is queued. `turns`: number so far; the
    last one added `new_tokens`. Hints: `priority` 0 low, 1 normal, 2 high; `expected_until_s`: the
    client announced a return before this time.
    """

    session: str
    blocks: int
    last_used_s: float
    waiting: bool
    shared_blocks: int = 0
    stored_blocks: int = 0
    turns: int = 0
    new_tokens: int = 0
    priority: int = 1
    expected_until_s: float | None = None

    @property
    def own_blocks(self) -> int:
        """Blocks that become available when this context alone is evicted."""
        return self.blocks - self.shared_blocks

    def is_expected(self, now_s: float) -> bool:
        """Whether its client announced a return, and that time has not passed."""
        return self.expected_until_s is not None and now_s < self.expected_until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementView:
    """The pool under pressure: `needed_blocks` more should become available.

    `swaps`: a tier accepts KV. Costs are seconds per block: `restore_s` to restore it from that
    tier, `recompute_s` to recompute it. `returns` are the engine's re-arrival counts.
    """

    now_s: float
    needed_blocks: int
    contexts: Sequence[ContextFacts]
    swaps: bool = False
    restore_s: float = 0.0
    recompute_s: float = 1.0
    returns: ReturnCounts = NOTHING_SEEN
