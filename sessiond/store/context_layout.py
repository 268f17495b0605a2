"""Context layout: which turns the model sees, by position and size. Pure; no ids.

*History tokens* are places in the ids of all turns of a context, one after the other, the front
left out. They never change, whatever is dropped, and forks share those of their common turns.
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
        """How many there are."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRef:
    """A stored summary; `tokens` are those of its whole user and assistant pair."""

    id: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleSpans:
    """What of the past a turn saw, when that is not what its parent saw and left behind.

    Between the front and the turn's own ids stand the summary, if any, then the spans, which rise
    and do not touch. `exact`: that is all there is to the context. `shifted`: it was made by
    dropping the other ids while the KV of these was kept.
    """

    spans: tuple[Span, ...]
    fidelity: Fidelity
    summary: SummaryRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSize:
    """One row of a context: the ids that it added, and the view that it began with."""

    tokens: int
    awaits_reply: bool
    view: VisibleSpans | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLayout:
    """A context as it stands. `turns`: those that the model sees, each whole, oldest first.

    A whole turn is a question with its reply, whether one row brought both or several: with
    `awaits_reply` the last one lacks the reply. `all_turns` counts those that are not seen, too.
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
        """All that the model sees."""
        return self.prefix_tokens + self.summary_tokens + sum(turn.tokens for turn in self.turns)

    @property
    def summary_tokens(self) -> int:
        """Those of the summary; 0: there is none."""
        return self.summary.tokens if self.summary else 0

    @property
    def dropped_turns(self) -> int:
        """Turns that the model does not see; those that a summary stands for are among them."""
        return self.all_turns - len(self.turns)

    @property
    def context(self) -> ContextKind:
        """The context as reported to clients."""
        if self.summary is not None:
            return "summarized"
        return "trimmed" if self.dropped_turns else "full"

    @property
    def finished(self) -> tuple[Span, ...]:
        """The turns that have their reply: those that may be dropped."""
        return self.turns[:-1] if self.awaits_reply else self.turns

    def view(self, fidelity: Fidelity) -> VisibleSpans:
        """The view of a turn that begins here."""
        return VisibleSpans(spans=_joined(self.turns), fidelity=fidelity, summary=self.summary)

    def seen(self, view: VisibleSpans) -> "ContextLayout":
        """The part of it that a view shows."""
        return replace(
            self,
            summary=view.summary,
            turns=tuple(turn for turn in self.turns if _is_in(turn, view.spans)),
            fidelity=view.fidelity,
        )

    def grown(self, tokens: int, *, awaits_reply: bool) -> "ContextLayout":
        """With the ids of one more row behind it."""
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


def layout_of(prefix_tokens: int, rows: Iterable[TurnSize]) -> ContextLayout:
    """The shape of a context with this front, after these rows, first to last."""
    layout = ContextLayout(prefix_tokens=prefix_tokens)
    for row in rows:
        if row.view is not None:
            layout = layout.seen(row.view)
        layout = layout.grown(row.tokens, awaits_reply=row.awaits_reply)
    return layout


def dropped_places(before: ContextLayout, after: ContextLayout) -> tuple[tuple[int, int], ...]:
    """What has to leave `before` to give `after`: places in the ids that were visible, front first.

    They rise and do not touch. `after` has the same front and nothing that `before` has not.
    """
    places: list[tuple[int, int]] = []
    place = before.prefix_tokens
    kept = set(after.turns)
    for tokens, goes in _parts(before, kept, keeps_summary=after.summary == before.summary):
        if goes and places and places[-1][1] == place:
            places[-1] = (places[-1][0], place + tokens)
        elif goes:
            places.append((place, place + tokens))
        place += tokens
    return tuple(places)


def _parts(
    before: ContextLayout, kept: set[Span], *, keeps_summary: bool
) -> Iterator[tuple[int, bool]]:
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
