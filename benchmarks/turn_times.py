"""When a turn's tokens arrived at the client, and what follows from it. Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTimes:
    """One turn as its client saw it. Seconds on one clock; tokens as the server counts them.

    `text_at_s` has one time per piece of text, in order, and at least one.
    """

    sent_at_s: float
    text_at_s: tuple[float, ...]
    input_tokens: int
    cached_tokens: int
    output_tokens: int

    @property
    def ttft_s(self) -> float:
        """Time to first token: from sending to the first text."""
        return self.text_at_s[0] - self.sent_at_s

    @property
    def itl_s(self) -> float | None:
        """Mean time between tokens; None for a reply of one."""
        if self.output_tokens < 2:
            return None
        return (self.text_at_s[-1] - self.text_at_s[0]) / (self.output_tokens - 1)

    @property
    def worst_gap_s(self) -> float:
        """Longest silence between two pieces of text."""
        pairs = zip(self.text_at_s, self.text_at_s[1:], strict=False)
        return max((after - before for before, after in pairs), default=0.0)


def figures(sessions: Sequence[Sequence[TurnTimes]], wall_s: float) -> dict[str, float]:
    """Columns of one played workload: tokens per second, milliseconds. `sessions` of turns."""
    turns = [turn for session in sessions for turn in session]
    later = [turn.ttft_s for session in sessions for turn in session[1:]]
    between = [turn.itl_s for turn in turns if turn.itl_s is not None]
    columns = {
        "tok_s": sum(turn.output_tokens for turn in turns) / wall_s,
        "ttft_first_ms": 1e3 * statistics.median(session[0].ttft_s for session in sessions),
    }
    if later:
        columns["ttft_later_ms"] = 1e3 * statistics.median(later)
    columns["ttft_p95_ms"] = 1e3 * percentile([turn.ttft_s for turn in turns], 95)
    if between:
        columns["itl_ms"] = 1e3 * statistics.median(between)
        columns["worst_gap_ms"] = 1e3 * max(turn.worst_gap_s for turn in turns)
    return columns


def growth_figures(turns: Sequence[TurnTimes], marks: Sequence[int]) -> dict[str, float]:
    """Columns of a chat that grows, in milliseconds.

    TTFT and mean time between tokens of the turn whose prompt is nearest to each of `marks` tokens.
    """
    columns: dict[str, float] = {}
    for mark in marks:
        turn = min(turns, key=lambda one: abs(one.input_tokens - mark))
        columns[f"ttft_ms_at_{mark}"] = 1e3 * turn.ttft_s
        if turn.itl_s is not None:
            columns[f"itl_ms_at_{mark}"] = 1e3 * turn.itl_s
    return columns


def decode_rate(turns: Sequence[TurnTimes]) -> float | None:
    """Tokens per second of all streams while every one of them is writing; None if never.

    The first token's prefill and the tail in which some have ended do not count.
    """
    start = max(turn.text_at_s[0] for turn in turns)
    end = min(turn.text_at_s[-1] for turn in turns)
    if end <= start:
        return None
    tokens = 0.0
    for turn in turns:
        inside = sum(start < at_s <= end for at_s in turn.text_at_s)
        tokens += inside * turn.output_tokens / len(turn.text_at_s)  # a piece may be many tokens
    return tokens / (end - start)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
