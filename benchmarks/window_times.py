"""What the turns of a chat in a window say together: TTFT, trims, refusals. Pure."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.turn_times import percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTurn:
    """One turn of the chat. Of a refused one (`refusal` is its code) there are no numbers.

    `input_tokens` are what the model saw before the reply, `computed_tokens` those of them that had
    no KV.
    """

    turn: int
    trimmed: bool = False
    ttft_ms: float = 0.0
    input_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """The first turn of a fresh conversation as large as `turn`, a trimmed one, right after it."""

    turn: int
    ttft_ms: float
    computed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """TTFT of some turns, in milliseconds; there is at least one."""

    turns: int
    median_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFigures:
    """One chat under one policy. Quarters count turns without a trim only."""

    turns: int
    refusals: Mapping[str, int]
    first_refusal: int | None
    trims: int
    longest_context_tokens: int
    longest_reply_tokens: int
    first_quarter: Times | None
    second_quarter: Times | None
    last_quarter: Times | None
    trimmed: Times | None
    trimmed_computed_tokens: int
    prefill: Times | None
    prefill_computed_tokens: int
    trimmed_to_prefill: float | None  # the median over pairs of TTFT to TTFT

    @property
    def trims_per_turn(self) -> float:
        """Share of the turns that dropped others."""
        return self.trims / self.turns

    @property
    def last_to_first(self) -> float | None:
        """Median TTFT of the last quarter to that of the first."""
        return _ratio(self.last_quarter, self.first_quarter)

    @property
    def last_to_second(self) -> float | None:
        """The same to the second quarter, in which the window has been full before."""
        return _ratio(self.last_quarter, self.second_quarter)

    @property
    def trimmed_to_plain(self) -> float | None:
        """Median TTFT of turns with a trim to that of the last quarter's turns without one."""
        return _ratio(self.trimmed, self.last_quarter)


def figures(turns: Sequence[WindowTurn], prefills: Sequence[Prefill]) -> WindowFigures:
    """Put a chat's turns together, all of them in order; there is at least one."""
    served = [turn for turn in turns if turn.refusal is None]
    trimmed = [turn for turn in served if turn.trimmed]
    refused = [turn for turn in turns if turn.refusal is not None]
    return WindowFigures(
        turns=len(turns),
        refusals=dict(Counter(turn.refusal for turn in refused if turn.refusal is not None)),
        first_refusal=refused[0].turn if refused else None,
        trims=len(trimmed),
        longest_context_tokens=max(
            (turn.input_tokens + turn.output_tokens for turn in served), default=0
        ),
        longest_reply_tokens=max((turn.output_tokens for turn in served), default=0),
        first_quarter=_plain(turns, 0),
        second_quarter=_plain(turns, 1),
        last_quarter=_plain(turns, 3),
        trimmed=_times([turn.ttft_ms for turn in trimmed]),
        trimmed_computed_tokens=_middle([turn.computed_tokens for turn in trimmed]),
        prefill=_times([one.ttft_ms for one in prefills]),
        prefill_computed_tokens=_middle([one.computed_tokens for one in prefills]),
        trimmed_to_prefill=_of_pairs(trimmed, prefills),
    )


def _plain(turns: Sequence[WindowTurn], quarter: int) -> Times | None:
    part = turns[quarter * len(turns) // 4 : (quarter + 1) * len(turns) // 4]
    return _times([one.ttft_ms for one in part if one.refusal is None and not one.trimmed])


def _times(values: Sequence[float]) -> Times | None:
    if not values:
        return None
    return Times(
        turns=len(values), median_ms=statistics.median(values), p95_ms=percentile(values, 95)
    )


def _of_pairs(trimmed: Sequence[WindowTurn], prefills: Sequence[Prefill]) -> float | None:
    ttft_ms = {turn.turn: turn.ttft_ms for turn in trimmed}
    ratios = [ttft_ms[one.turn] / one.ttft_ms for one in prefills]
    return statistics.median(ratios) if ratios else None


def _middle(values: Sequence[int]) -> int:
    return round(statistics.median(values)) if values else 0


def _ratio(one: Times | None, other: Times | None) -> float | None:
    return None if one is None or other is None else one.median_ms / other.median_ms
