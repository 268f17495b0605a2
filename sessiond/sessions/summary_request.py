"""Source, prompt and token bounds of a summary. Pure."""

from dataclasses import dataclass

from sessiond.store.shape import Shape, Span

REQUEST = (
    "Summarise our conversation so far, and any earlier summary in it, so that it can go on from "
    "your summary alone. Keep names, numbers, decisions, wishes and open questions. Write plain "
    "sentences without a preamble, 150 words at most."
)
"""The prompt for a summary. It is in no stored context."""

QUESTION = "What have we said so far?"
"""The message before a summary in a context."""

MIN_TOKENS = 16
"""Minimum tokens of a summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A summary is written from the first `length` visible tokens, in at most `most_tokens`.

    These end with a whole turn, at place `read_tokens` of the history.
    """

    length: int
    read_tokens: int
    most_tokens: int


def covered_by(shape: Shape, keep_last: int) -> int:
    """History tokens that a summary stands for if the last so many whole turns stay."""
    finished = shape.finished
    replaced = finished[: len(finished) - keep_last]
    return replaced[-1].stop if replaced else 0


def reading_of(
    shape: Shape, *, covered: int, wanted_tokens: int, limit_tokens: int, overhead_tokens: int
) -> Reading | None:
    """All of a context, if that leaves room for the summary; else fewer of the newest turns.

    What the summary shall stand for is read in any case. `limit_tokens` may be held in all;
    `overhead_tokens` are those of the request and of what is owed after the reply. None: there is
    no room.
    """
    if wanted_tokens < MIN_TOKENS:
        return None
    length = shape.front_tokens + shape.summary_tokens
    lengths: list[tuple[Span, int]] = []
    for turn in shape.finished:
        length += turn.tokens
        if turn.stop >= covered:
            lengths.append((turn, length))
    best: Reading | None = None
    for turn, length in lengths:
        room = min(wanted_tokens, limit_tokens - length - overhead_tokens)
        if room >= (MIN_TOKENS if best is None else wanted_tokens):
            best = Reading(length=length, read_tokens=turn.stop, most_tokens=room)
    return best
