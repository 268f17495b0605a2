"""Context layout: which turns the model sees, by position and size. Pure; no ids.

*History tokens* are positions in the concatenated ids of all turns of a context, without the system
prefix. Edits never change them, and forks share those of their common turns.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Fidelity = Literal["exact", "shifted"]
ContextKind = Literal["full", "trimmed", "summarized"]


class Span(NamedTuple):
    """History tokens [start, stop)."""

    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """Length of the span."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRef:
    """A stored summary; `tokens` counts its whole pair of user and assistant message."""

    id: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleSpans:
    """The visible part of a turn's history, if it differs from the context after the parent.

    The context is the system prefix, the summary, if any, the spans, then the turn's own ids. Spans
    are in order and not adjacent. `exact`: the context was computed as such. `shifted`: the other
    ids were dropped, and the KV of these was kept.
    """

    spans: tuple[Span, ...]
    fidelity: Fidelity
    summary: SummaryRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSize:
    """One row of a context: the number of ids that it added, and its view.

    `parts`: tokens of the whole turns that its input starts with; 0 for one that was dropped.
    """

    tokens: int
    awaits_reply: bool
    view: VisibleSpans | None
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLayout:
    """A context. `turns`: the visible ones, each whole, oldest first.

    A whole turn is a message with its reply, from one row or several; with `awaits_reply` the last
    one has no reply yet. `all_turns` also counts those that are not visible.
    """

    prefix_tokens: int
    summary: SummaryRef | None = None
    turns: tuple[Span, ...] = ()
    awaits_reply: bool = False
    history_tokens: int = 0
    all_turns: int = 0
    fidelity: Fidelity = "exact"

    @property
    def tokens(self) -> int:
        """All visible tokens."""
        return self.prefix_tokens + self.summary_tokens + sum(turn.tokens for turn in self.turns)

    @property
    def summary_tokens(self) -> int:
        """Tokens of the summary; 0: there is none."""
        return self.summary.tokens if self.summary else 0

    @property
    def dropped_turns(self) -> int:
        """Number of turns that are not visible, those that a summary stands for included."""
        return self.all_turns - len(self.turns)

    @property
    def context(self) -> ContextKind:
        """The context as reported to clients."""
        if self.summary is not None:
            return "summarized"
        return "trimmed" if self.dropped_turns else "full"

    @property
    def finished(self) -> tuple[Span, ...]:
        """The visible turns with a reply; a policy may drop these."""
        return self.turns[:-1] if self.awaits_reply else self.turns

    def view(self, fidelity: Fidelity) -> VisibleSpans:
        """The view of a turn that starts with this layout."""
        return VisibleSpans(spans=_joined(self.turns), fidelity=fidelity, summary=self.summary)

    def seen(self, view: VisibleSpans) -> "ContextLayout":
        """The layout after a view is applied."""
        return replace(
            self,
            summary=view.summary,
            turns=tuple(turn for turn in self.turns if _is_in(turn, view.spans)),
            fidelity=view.fidelity,
        )

    def grown(self, tokens: int, *, awaits_reply: bool) -> "ContextLayout":
        """The layout with `tokens` more ids of one row."""
        if not tokens:
            return replace(self, awaits_reply=awaits_reply)
        stop = self.history_tokens + tokens
        if self.awaits_reply and self.turns:
            turns = (*self.turns[:-1], Span(self.turns[-1].start, stop))
            all_turns = self.all_turns
        else:
            turns = (*self.turns, Span(self.history_tokens, stop))
            all_turns = self.all_turns + 1
        return replace(
            self,
            turns=turns,
            awaits_reply=awaits_reply,
            history_tokens=stop,
            all_turns=all_turns,
        )

    def grown_by(self, parts: Iterable[int], tokens: int, *, awaits_reply: bool) -> "ContextLayout":
        """As `grown`; `parts` of the tokens are whole turns at their start (0: a dropped one)."""
        layout = self
        for part in parts:
            tokens -= part
            if part:
                layout = layout.grown(part, awaits_reply=False)
            else:
                layout = replace(layout, all_turns=layout.all_turns + 1)
        return layout.grown(tokens, awaits_reply=awaits_reply)


def layout_of(prefix_tokens: int, rows: Iterable[TurnSize]) -> ContextLayout:
    """The layout after a system prefix and rows, first to last."""
    layout = ContextLayout(prefix_tokens=prefix_tokens)
    for row in rows:
        if row.view is not None:
            layout = layout.seen(row.view)
        layout = layout.grown_by(row.parts, row.tokens, awaits_reply=row.awaits_reply)
    return layout


def dropped_places(before: ContextLayout, after: ContextLayout) -> tuple[tuple[int, int], ...]:
    """Ranges of `before`'s visible tokens, system prefix included, to drop so that `after` remains.

    Ranges are in order and not adjacent. `after` is a part of `before` with the same system prefix.
    """
    places: list[tuple[int, int]] = []
    place = before.prefix_tokens
    kept = set(after.turns)
    for tokens, is_dropped in _parts(before, kept, keeps_summary=after.summary == before.summary):
        if is_dropped and places and places[-1][1] == place:
            places[-1] = (places[-1][0], place + tokens)
        elif is_dropped:
            places.append((place, place + tokens))
        place += tokens
    return tuple(places)


def _parts(
    before: ContextLayout, kept: set[Span], *, keeps_summary: bool
) -> Iterator[tuple[int, bool]]:
    """Tokens of the summary and of each turn, and whether they are dropped."""
    if before.summary is not None:
        yield before.summary.tokens, not keeps_summary
    for turn in before.turns:
        yield turn.tokens, turn not in kept


def _joined(turns: Iterable[Span]) -> tuple[Span, ...]:
    spans: list[Span] = []
    for turn in turns:
        if spans and spans[-1].stop == turn.start:
            spans[-1] = Span(spans[-1].start, turn.stop)
        else:
            spans.append(turn)
    return tuple(spans)


def _is_in(turn: Span, spans: tuple[Span, ...]) -> bool:
    return any(span.start <= turn.start and turn.stop <= span.stop for span in spans)
