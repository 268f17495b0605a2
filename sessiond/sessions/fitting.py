"""What a context policy's plan makes of a context, and what the client is told of it. Pure."""

from dataclasses import dataclass, replace
from typing import Literal

from engine.messages import Edit
from policies.plan import KeepAll, KeepTurns
from policies.views import ConversationView
from sessiond.facts import ContextChanged
from sessiond.sessions.summaries import Summary
from sessiond.store.shape import Fidelity, Shape, View, dropped_places

Reason = Literal[
    "trimmed",
    "summarized",
    "summary_failed",
    "rebuilt_exact",
    "instructions",
    "policy",
    "oversize",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A context as a turn begins with it. `view` None: as its parent left it behind.

    `edit`: what an engine does to get there from where the parent left it; None with a view: it
    has to be set anew.
    """

    shape: Shape
    view: View | None = None
    edit: Edit | None = None


def conversation_view(
    shape: Shape, *, prompt_tokens: int, output_tokens: int, limit_tokens: int
) -> ConversationView:
    """What a context policy is shown. A question that awaits its reply is part of the new turn."""
    return ConversationView(
        system_tokens=shape.front_tokens,
        summary_tokens=shape.summary_tokens,
        turns=tuple(turn.tokens for turn in shape.finished),
        prompt_tokens=prompt_tokens + open_tokens(shape),
        output_tokens=output_tokens,
        limit_tokens=limit_tokens,
    )


def open_tokens(shape: Shape) -> int:
    """Tokens of a question that awaits its reply."""
    return sum(turn.tokens for turn in shape.turns) - sum(turn.tokens for turn in shape.finished)


def kept(shape: Shape, plan: KeepAll | KeepTurns) -> Shape:
    """The context that a plan leaves."""
    if isinstance(plan, KeepAll):
        return shape
    finished, pending = shape.finished, shape.turns[len(shape.finished) :]
    return replace(
        shape,
        summary=shape.summary if plan.summary else None,
        turns=(*(finished[index] for index in plan.turns), *pending),
    )


def summarized(shape: Shape, summary: Summary) -> Shape:
    """The context in which a summary stands for what it covers."""
    turns = tuple(turn for turn in shape.turns if turn.start >= summary.covered)
    return replace(shape, summary=summary.ref, turns=turns)


def fit(before: Shape, after: Shape, *, fidelity: Fidelity | None, new_front: bool) -> Fit:
    """How to get from what the parent left behind to what the turn shall see.

    `after` has the new front, if there is one. `fidelity` is that of the policy in force; None:
    nothing says how a context is to be made, so it stays what it is. A front or a summary that was
    not there can't be put before ids whose KV is kept: then all is computed anew.
    """
    same = (after.turns, after.summary) == (before.turns, before.summary)
    must_be_exact = new_front or after.summary not in {before.summary, None}
    exact = must_be_exact or (fidelity or before.fidelity) == "exact"
    if same and not (before.fidelity == "shifted" and exact):
        return Fit(shape=after)
    after = replace(after, fidelity="exact" if exact else "shifted")
    view = after.view(after.fidelity)
    if exact:
        return Fit(shape=after, view=view)
    edit = Edit(at=before.tokens, dropped=dropped_places(before, after))
    return Fit(shape=after, view=view, edit=edit)


def cut_short(session_id: str, shape: Shape, input_tokens: int, kept: int) -> ContextChanged:
    """What the client is told of a turn that was too long, of whose input so much is kept."""
    return ContextChanged(
        session_id=session_id,
        reason="oversize",
        dropped_turns=0,
        tokens_before=shape.tokens + input_tokens,
        tokens_after=shape.tokens + kept,
        context="trimmed",
        fidelity=shape.fidelity,
    )


def changed(session_id: str, reason: Reason, before: Shape, after: Shape) -> ContextChanged:
    """What the client is told."""
    return ContextChanged(
        session_id=session_id,
        reason=reason,
        dropped_turns=len(before.turns) - len(after.turns),
        tokens_before=before.tokens,
        tokens_after=after.tokens,
        context=after.context,
        fidelity=after.fidelity,
    )
