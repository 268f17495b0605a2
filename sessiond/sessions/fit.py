"""Fits a turn into the context limit: policy plan, summary, oversized input.

`Summaries` is the Protocol by which the planner finds a stored summary.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, Protocol

from engine.ipc.messages import Edit
from policies.plan import KeepAll, KeepTurns, Summarize
from policies.toolkit import keep_newest
from policies.views import ConversationView
from sessiond.domain import ContextChanged, InputItem, SummaryOverdue
from sessiond.quota import PriorityName
from sessiond.sessions.live_session import LiveSession
from sessiond.store.context_layout import (
    ContextLayout,
    Fidelity,
    SummaryRef,
    VisibleSpans,
    dropped_places,
)

_SHARES: Mapping[PriorityName, int] = MappingProxyType({"low": 1, "normal": 2})
_NEWEST_KEPT = 4  # turns
_TRIM_TO = 0.8
_LONGEST_TOKEN = 32  # characters; with longer tokens, slightly less text than possible is kept

Encode = Callable[[Sequence[InputItem]], Awaitable[tuple[int, ...]]]
"""Encodes messages and the ids that follow them."""


async def keep_end(
    items: Sequence[InputItem], most_tokens: int, encode: Encode
) -> tuple[int, ...] | None:
    """Ids of the longest end of the input within `most_tokens`; None: no text fits.

    The last messages stay whole. The message before them is cut to the end of its text.
    """
    most = max(0, most_tokens)

    def last(count: int) -> Sequence[InputItem]:
        return items[len(items) - count :]

    # each message has at least one token
    whole, best = await _longest(min(len(items), most), last, most, encode)
    if whole == len(items):
        return best
    cut, behind = items[-whole - 1], last(whole)

    def end(count: int) -> Sequence[InputItem]:
        return [replace(cut, text=cut.text[-count:]), *behind]

    _, longer = await _longest(min(len(cut.text), most * _LONGEST_TOKEN), end, most, encode)
    return longer or best


async def _longest(
    most: int, part: Callable[[int], Sequence[InputItem]], most_tokens: int, encode: Encode
) -> tuple[int, tuple[int, ...] | None]:
    """The largest count up to `most` whose part fits, and its ids; 0 and None: none fits.

    Binary search: an input may have thousands of messages, each of a few tokens.
    """
    fits, best = 0, None
    while fits < most:
        middle = (fits + most + 1) // 2
        ids = await encode(part(middle))
        if len(ids) <= most_tokens:
            fits, best = middle, ids
        else:
            most = middle - 1
    return fits, best


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A stored summary. It stands for the first `covered` history tokens: whole turns."""

    ref: SummaryRef
    covered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a turn may wait for a summary: until it is stopped, `seconds` at most.

    `priority`: the one that the turn asks for; None: that of its session.
    """

    stopped: asyncio.Event
    seconds: float
    priority: PriorityName | None = None


class Summaries(Protocol):
    """Finds or makes summaries."""

    async def find(
        self, live: LiveSession, layout: ContextLayout, plan: Summarize, patience: Patience | None
    ) -> Summary | None:
        """A summary for a session whose turn lock the caller holds; None: there is none now.

        `layout`: the context layout after the session's tip. The call waits for a summary only if
        the turn can't run without one, or the context `is_far_beyond` the plan's threshold;
        `patience` None: not at all.
        """
        ...


Reason = Literal[
    "trimmed",
    "summarized",
    "summary_failed",
    "rebuilt_exact",
    "instructions",
    "policy",
    "oversize",
    "memory_pressure",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The context at the start of a turn. `view` None: as after its parent turn.

    `edit`: the engine's edit of the parent's context; None with a view: the context is rebuilt.
    """

    layout: ContextLayout
    view: VisibleSpans | None = None
    edit: Edit | None = None


def conversation_view(
    layout: ContextLayout, *, prompt_tokens: int, output_tokens: int, limit_tokens: int
) -> ConversationView:
    """The input of a context policy. An unanswered message belongs to the new turn."""
    return ConversationView(
        system_tokens=layout.prefix_tokens,
        summary_tokens=layout.summary_tokens,
        turns=tuple(turn.tokens for turn in layout.finished),
        prompt_tokens=prompt_tokens + open_tokens(layout),
        output_tokens=output_tokens,
        limit_tokens=limit_tokens,
    )


def open_tokens(layout: ContextLayout) -> int:
    """Tokens of an unanswered message."""
    return sum(turn.tokens for turn in layout.turns) - sum(turn.tokens for turn in layout.finished)


def kept(layout: ContextLayout, plan: KeepAll | KeepTurns) -> ContextLayout:
    """The layout after a plan is applied."""
    if isinstance(plan, KeepAll):
        return layout
    finished, pending = layout.finished, layout.turns[len(layout.finished) :]
    return replace(
        layout,
        summary=layout.summary if plan.summary else None,
        turns=(*(finished[index] for index in plan.turns), *pending),
    )


def trimmed_for_memory(
    view: ConversationView, priority: PriorityName, share: int
) -> KeepAll | KeepTurns:
    """The plan of a conversation that may lose its oldest turns while memory is short.

    `share`: an equal share of the pool in tokens. So the longest are cut first, and most; those of
    low priority to one share, of normal priority to two, of high priority never. The newest turns
    stay, and nothing is dropped that would not save a fifth.
    """
    limit = share * _SHARES.get(priority, 0)
    if not limit or view.needed_tokens <= limit:
        return KeepAll()
    count = len(view.turns)
    fitting = len(keep_newest(view, limit=limit, target=int(limit * _TRIM_TO)).turns)
    first = count - max(fitting, min(count, _NEWEST_KEPT))
    if sum(view.turns[:first]) < (1 - _TRIM_TO) * view.needed_tokens:
        return KeepAll()
    return KeepTurns(turns=range(first, count))


def summarized(layout: ContextLayout, summary: Summary) -> ContextLayout:
    """The layout with a summary in place of the turns that it covers."""
    turns = tuple(turn for turn in layout.turns if turn.start >= summary.covered)
    return replace(layout, summary=summary.ref, turns=turns)


def fit(
    before: ContextLayout,
    after: ContextLayout,
    *,
    fidelity: Fidelity | None,
    must_rebuild: bool,
) -> Fit:
    """Compute the edit from the parent's context to the context of the turn.

    `after` has the new system prefix, if any. `fidelity` is that of the policy in force; None keeps
    the current one. A new summary can't precede kept KV, so the context is recomputed, as it is if
    it `must_rebuild`: the system prefix is new, or no engine can have computed all of `before`.
    """
    same = (after.turns, after.summary) == (before.turns, before.summary)
    must_be_exact = must_rebuild or after.summary not in {before.summary, None}
    exact = must_be_exact or (fidelity or before.fidelity) == "exact"
    if same and not (before.fidelity == "shifted" and exact):
        return Fit(layout=after)
    after = replace(after, fidelity="exact" if exact else "shifted")
    view = after.view(after.fidelity)
    if exact:
        return Fit(layout=after, view=view)
    edit = Edit(at=before.tokens, dropped=dropped_places(before, after))
    return Fit(layout=after, view=view, edit=edit)


def is_far_beyond(layout: ContextLayout, plan: Summarize) -> bool:
    """Whether the summary is so overdue that turns wait for it."""
    return plan.threshold is not None and layout.tokens > _far_threshold(plan.threshold)


def overdue(session_id: str, layout: ContextLayout, plan: Summarize) -> SummaryOverdue | None:
    """The client event of a context beyond the plan's threshold, or far beyond it; None: neither.

    A session reports each of the two once, until its context has changed.
    """
    if plan.threshold is None or layout.tokens <= plan.threshold:
        return None
    passed = plan.threshold
    if is_far_beyond(layout, plan):
        passed = _far_threshold(passed)
    return SummaryOverdue(session_id=session_id, tokens=layout.tokens, threshold=passed)


def _far_threshold(threshold: int) -> int:
    return threshold * 3 // 2


def cut_short(
    session_id: str, layout: ContextLayout, input_tokens: int, kept: int
) -> ContextChanged:
    """The client event of an oversize turn that keeps `kept` tokens of its input."""
    return ContextChanged(
        session_id=session_id,
        reason="oversize",
        dropped_turns=0,
        tokens_before=layout.tokens + input_tokens,
        tokens_after=layout.tokens + kept,
        context="trimmed",
        fidelity=layout.fidelity,
    )


def changed(
    session_id: str, reason: Reason, before: ContextLayout, after: ContextLayout
) -> ContextChanged:
    """The client event of a changed context."""
    return ContextChanged(
        session_id=session_id,
        reason=reason,
        dropped_turns=len(before.turns) - len(after.turns),
        tokens_before=before.tokens,
        tokens_after=after.tokens,
        context=after.context,
        fidelity=after.fidelity,
    )
