"""Applies a context policy's plan to a context layout; makes its client event. Pure."""

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
    """The context at the start of a turn. `view` None: as after its parent turn.

    `edit`: the engine's edit of the parent's context; None with a view: the context is rebuilt.
    """

    shape: Shape
    view: View | None = None
    edit: Edit | None = None


def conversation_view(
    shape: Shape, *, prompt_tokens: int, output_tokens: int, limit_tokens: int
) -> ConversationView:
    """The input of a context policy. An unanswered message belongs to the new turn."""
    return ConversationView(
        system_tokens=shape.front_tokens,
        summary_tokens=shape.summary_tokens,
        turns=tuple(turn.tokens for turn in shape.finished),
        prompt_tokens=prompt_tokens + open_tokens(shape),
        output_tokens=output_tokens,
        limit_tokens=limit_tokens,
    )


def open_tokens(shape: Shape) -> int:
    """Tokens of an unanswered message."""
    return sum(turn.tokens for turn in shape.turns) - sum(turn.tokens for turn in shape.finished)


def kept(shape: Shape, plan: KeepAll | KeepTurns) -> Shape:
    """The layout after a plan is applied."""
    if isinstance(plan, KeepAll):
        return shape
    finished, pending = shape.finished, shape.turns[len(shape.finished) :]
    return replace(
        shape,
        summary=shape.summary if plan.summary else None,
        turns=(*(finished[index] for index in plan.turns), *pending),
    )


def summarized(shape: Shape, summary: Summary) -> Shape:
    """The layout with a summary in place of the turns that it covers."""
    turns = tuple(turn for turn in shape.turns if turn.start >= summary.covered)
    return replace(shape, summary=summary.ref, turns=turns)


def fit(before: Shape, after: Shape, *, fidelity: Fidelity | None, new_front: bool) -> Fit:
    """Compute the edit from the parent's context to the context of the turn.

    `after` has the new system prefix, if any. `fidelity` is that of the policy in force; None keeps
    the current fidelity. A new prefix or summary can't precede kept KV: then all is recomputed.
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
    """The client event of an oversize turn of whose input `kept` tokens remain."""
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
