"""Maps the engine's last event of a turn to its row, session and client event. Pure."""

from dataclasses import dataclass, replace
from typing import assert_never

from engine.ipc.messages import TurnCounts, TurnDone, TurnEnding, TurnFailed, TurnIncomplete
from sessiond.domain import (
    IncompleteReason,
    ItemView,
    TurnAccepted,
    TurnError,
    TurnFinished,
    TurnStatus,
    TurnUsage,
)
from sessiond.sessions.plan import TurnPlan
from sessiond.sessions.transcript import extended
from sessiond.store.context_layout import ContextLayout
from sessiond.store.records import AbortedTurn, CommittedTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEnd:
    """The row and last event of a turn that joins the context."""

    row: CommittedTurn
    finished: TurnFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedEnd:
    """The row and last event of a turn that leaves the context unchanged."""

    row: AbortedTurn
    finished: TurnFinished


TurnEnd = CommittedEnd | AbortedEnd


def end_of(
    ending: TurnEnding, *, user_id: str, accepted: TurnAccepted, plan: TurnPlan, now: float
) -> TurnEnd:
    """Decide the result of a turn."""
    match ending:
        case TurnDone():
            return _committed(ending, "completed", None, user_id, accepted, plan, now)
        case TurnIncomplete(rolled_back=False):
            return _committed(
                ending, "incomplete", _reason(ending, accepted, plan), user_id, accepted, plan, now
            )
        case TurnIncomplete():
            finished = TurnFinished(
                status="incomplete",
                text=ending.text,
                usage=_usage(ending, plan),
                reason=_reason(ending, accepted, plan),
            )
            return _aborted(finished, user_id, accepted, now)
        case TurnFailed():
            return failed(
                TurnError(code=ending.code, message=ending.message),
                _usage(ending, plan),
                user_id=user_id,
                accepted=accepted,
                now=now,
            )
        case _:
            assert_never(ending)


def failed(
    error: TurnError, usage: TurnUsage, *, user_id: str, accepted: TurnAccepted, now: float
) -> AbortedEnd:
    """End a turn with an error."""
    finished = TurnFinished(status="failed", text="", usage=usage, error=error)
    return _aborted(finished, user_id, accepted, now)


def _usage(ending: TurnEnding, plan: TurnPlan) -> TurnUsage:
    usage = usage_of(ending.counts, plan.layout)
    if plan.is_cut and usage.context == "full":
        return replace(usage, context="trimmed")
    return usage


def usage_of(counts: TurnCounts, layout: ContextLayout) -> TurnUsage:
    """Usage for the client, from the engine's counts and the context layout."""
    return TurnUsage(
        reused_tokens=counts.reused_tokens,
        restored_tokens=counts.restored_tokens,
        restored_from=counts.restored_from,
        recomputed_tokens=counts.recomputed_tokens,
        new_tokens=counts.new_tokens,
        output_tokens=counts.output_tokens,
        kv_bytes=counts.kv_bytes,
        blocks=counts.blocks,
        queue_ms=counts.queue_ms,
        ttft_ms=counts.ttft_ms,
        total_ms=counts.total_ms,
        context=layout.context,
        fidelity=layout.fidelity,
        summary_tokens=layout.summary_tokens,
    )


def _committed(  # noqa: PLR0913, PLR0917 -- the parts of one ending, private
    ending: TurnDone | TurnIncomplete,
    status: TurnStatus,
    reason: IncompleteReason | None,
    user_id: str,
    accepted: TurnAccepted,
    plan: TurnPlan,
    now: float,
) -> CommittedEnd:
    finished = TurnFinished(
        status=status, text=ending.text, usage=_usage(ending, plan), reason=reason
    )
    row = CommittedTurn(
        id=accepted.response_id,
        user_id=user_id,
        session_id=accepted.session_id,
        parent_id=plan.parent_id,
        prompt_id=plan.prompt.id,
        status=status,
        reason=reason,
        reply_ids=tuple(ending.kept_ids),
        reply=_reply(accepted, finished, now) if accepted.request.generate else None,
        context_tokens=plan.layout_after(len(ending.kept_ids)).tokens,
        usage=finished.usage,
        finished_at=now,
        epoch=plan.epoch,
        view=plan.view,
        digest=_digest(accepted, plan, ending.text),
    )
    return CommittedEnd(row=row, finished=finished)


def _digest(accepted: TurnAccepted, plan: TurnPlan, reply: str) -> str | None:
    if plan.digest is None or not accepted.request.generate:
        return plan.digest
    return extended(plan.digest, "assistant", reply)


def _aborted(
    finished: TurnFinished, user_id: str, accepted: TurnAccepted, now: float
) -> AbortedEnd:
    row = AbortedTurn(
        id=accepted.response_id,
        user_id=user_id,
        status="failed" if finished.error else "cancelled",
        reason=finished.reason,
        error=finished.error,
        reply=_reply(accepted, finished, now) if finished.text else None,
        usage=finished.usage,
        finished_at=now,
    )
    return AbortedEnd(row=row, finished=finished)


def _reply(accepted: TurnAccepted, finished: TurnFinished, now: float) -> ItemView:
    return ItemView(
        id=accepted.message_id,
        session_id=accepted.session_id,
        response_id=accepted.response_id,
        role="assistant",
        text=finished.text,
        status="completed" if finished.status == "completed" else "incomplete",
        created_at=now,
    )


def _reason(ending: TurnIncomplete, accepted: TurnAccepted, plan: TurnPlan) -> IncompleteReason:
    match ending.reason:
        case "max_output_tokens" if plan.max_output_tokens < (
            accepted.request.max_output_tokens or 0
        ):
            return "context_length"  # the request did not fit under the policy's cap
        case "disconnected":
            return "cancelled"  # the client has disconnected
        case "max_output_tokens" | "cancelled" | "deadline" | "memory_pressure" | "context_length":
            return ending.reason
        case _:
            assert_never(ending.reason)
