"""Re-arrival statistics: how often sessions returned, by kind and idle time. Counts only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MOST_TURNS = 5
"""Sessions with more turns than this count as one kind."""

_LEAST_TOKENS_BITS = 7  # below 128 tokens: a typed line
_MOST_TOKENS_LEVEL = 7  # 8,192 tokens and more: a document


class TurnKind(NamedTuple):
    """What a session did last: `turns` so far, and the size of its last turn's input."""

    turns: int
    size: int


def turn_kind(turns: int, new_tokens: int) -> TurnKind:
    """The kind of a session after `turns` turns, the last of which brought `new_tokens`."""
    level = max(0, new_tokens.bit_length() - _LEAST_TOKENS_BITS)
    return TurnKind(max(1, min(turns, MOST_TURNS)), min(level, _MOST_TOKENS_LEVEL))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReturnCounts:
    """Counts since the engine's start, per kind and per span of idle time.

    Span i ends at `ages_s[i]` and begins where the one before it ends. `watched[kind][i]`: how
    often a session was idle at the span's start and the outcome of the span is known (it returned,
    or it was still idle at the end); `returned[kind][i]`: how often it returned in the span. Two
    counts are equal if they are one object: derived values can be cached by it.
    """

    ages_s: Sequence[float]
    watched: Mapping[TurnKind, Sequence[int]]
    returned: Mapping[TurnKind, Sequence[int]]


NOTHING_SEEN = ReturnCounts(
    # Half powers of two from 8 s to an hour and a half.
    ages_s=tuple(float(round(8 * 2 ** (step / 2))) for step in range(20)),
    watched={},
    returned={},
)
"""Counts of an engine that has just started."""
