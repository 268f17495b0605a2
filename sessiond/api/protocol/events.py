"""Encodes log entries of a turn as events of its stream. Pure; one encoder per turn."""

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from sessiond.api.protocol.resources import (
    Json,
    MessageStatus,
    ResponseState,
    output_message,
    output_text,
    request_error_object,
    response_object,
)
from sessiond.domain import (
    ContextChanged,
    SessionDegraded,
    SessionView,
    SessionWaiting,
    SummaryOverdue,
    TextDelta,
    TurnAccepted,
    TurnBegun,
    TurnFinished,
    TurnLogEntry,
    TurnQueued,
)
from sessiond.errors import RequestError

DELTA = "response.output_text.delta"
TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})


class ResponseEncoder:
    """Numbers and encodes the events of one turn.

    Order: created, queued?, in_progress, then for a reply output_item.added, content_part.added,
    output_text.delta*, output_text.done, content_part.done, output_item.done, then exactly one of
    completed, incomplete, failed. `sequence_number` counts all events from 0 without a gap,
    including this server's own.
    """

    def __init__(self, accepted: TurnAccepted, stream_id: str | None) -> None:
        self._stream_id = stream_id
        self._next_number = 0
        self._text: list[str] = []
        self._open = False
        self.finished = False
        self._state = ResponseState(
            response_id=accepted.response_id,
            session_id=accepted.session_id,
            message_id=accepted.message_id,
            previous_response_id=accepted.previous_response_id,
            model=accepted.model,
            instructions=accepted.instructions,
            created_at=accepted.created_at,
            request=accepted.request,
            status="in_progress",
        )

    @property
    def response(self) -> Json:
        """The response object in its current state."""
        return response_object(self._state)

    def skip(self, *, deltas: int, others: int, text: str) -> int:
        """Count the start of the turn as sent: `deltas` pieces of `text` and `others` entries.

        Returns:
            The number of the last event that was skipped.
        """
        self._next_number = 1 + others + deltas + (2 if deltas else 0)
        self._open = deltas > 0
        self._text = [text]
        return self._next_number - 1

    def created(self) -> Json:
        """Encode the first event."""
        return self._event("response.created", response=self.response)

    def encode(self, entry: TurnLogEntry) -> Iterator[Json]:
        """Encode one log entry; entries come in order, and `TurnFinished` is the last one."""
        match entry:
            case TurnQueued():
                self._state = replace(self._state, status="queued")
                yield self._event("response.queued", response=self.response)
            case TurnBegun():
                self._state = replace(self._state, status="in_progress")
                yield self._event("response.in_progress", response=self.response)
            case TextDelta():
                yield from self._delta(entry.text)
            case SessionWaiting():
                yield self._waiting(entry)
            case ContextChanged():
                yield self._context_changed(entry)
            case SummaryOverdue():
                yield self._event(
                    "session.summary_overdue",
                    session=entry.session_id,
                    tokens=entry.tokens,
                    threshold=entry.threshold,
                )
            case SessionDegraded():
                yield self._event(
                    "session.degraded",
                    session=entry.session_id,
                    step=entry.step,
                    reason=entry.reason,
                )
            case TurnFinished():
                yield from self._finish(entry)
            case _:
                assert_never(entry)

    def _delta(self, text: str) -> Iterator[Json]:
        if not text:
            return
        if not self._open:
            yield from self._open_item()
        self._text.append(text)
        yield self._event(DELTA, **self._place, delta=text, logprobs=[])

    def _open_item(self) -> Iterator[Json]:
        self._open = True
        item = output_message(self._state.message_id, None, "in_progress")
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **self._place, part=output_text(""))

    def _finish(self, entry: TurnFinished) -> Iterator[Json]:
        has_reply = entry.status != "failed" and (
            self._open or entry.text != "" or self._is_empty_reply(entry)
        )
        if has_reply:
            sent = "".join(self._text)
            if entry.text.startswith(sent):
                yield from self._delta(entry.text[len(sent) :])
            if not self._open:
                yield from self._open_item()
            yield from self._close_item(entry)
        self._state = replace(
            self._state,
            status=entry.status,
            text=entry.text if has_reply else None,
            usage=entry.usage,
            reason=entry.reason,
            error=entry.error,
        )
        self.finished = True
        yield self._event(f"response.{entry.status}", response=self.response)

    def _is_empty_reply(self, entry: TurnFinished) -> bool:
        """Return whether the model ended an empty reply: the item exists, without text."""
        return entry.status == "completed" and self._state.request.generate

    def _close_item(self, entry: TurnFinished) -> Iterator[Json]:
        status: MessageStatus = "completed" if entry.status == "completed" else "incomplete"
        text = entry.text
        yield self._event("response.output_text.done", **self._place, text=text, logprobs=[])
        yield self._event("response.content_part.done", **self._place, part=output_text(text))
        item = output_message(self._state.message_id, text, status)
        yield self._event("response.output_item.done", output_index=0, item=item)

    def _waiting(self, entry: SessionWaiting) -> Json:
        reason = {"for": entry.cause}
        return self._event(
            "session.waiting",
            session=entry.session_id,
            response_id=entry.response_id,
            **reason,
            position=entry.position,
            since_ms=entry.since_ms,
        )

    def _context_changed(self, entry: ContextChanged) -> Json:
        return self._event(
            "session.context_changed",
            session=entry.session_id,
            reason=entry.reason,
            dropped_turns=entry.dropped_turns,
            tokens_before=entry.tokens_before,
            tokens_after=entry.tokens_after,
            context=entry.context,
            fidelity=entry.fidelity,
        )

    @property
    def _place(self) -> Json:
        return {"item_id": self._state.message_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: object) -> Json:
        event: Json = {"type": kind, "sequence_number": self._next_number, **fields}
        if self._stream_id is not None:
            event["stream_id"] = self._stream_id
        self._next_number += 1
        return event


def error_event(error: RequestError, stream_id: str | None) -> Json:
    """Encode the error of an invalid frame or of a turn that was not accepted."""
    inner = request_error_object(error)
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if headers:
        inner["headers"] = headers
    event: Json = {"type": "error", "status": error.status, "error": inner}
    if stream_id is not None:
        event["stream_id"] = stream_id
    return event


def session_updated_event(view: SessionView, stream_id: str | None) -> Json:
    """Encode the settings of a session, effective from its next turn."""
    event: Json = {
        "type": "session.updated",
        "session": view.id,
        "policy": view.policy,
        "fidelity": view.fidelity,
        "retention": view.retention,
        "priority": view.priority,
    }
    if stream_id is not None:
        event["stream_id"] = stream_id
    return event


def session_closed_event(session: str, stream_id: str | None) -> Json:
    """Encode that a session was closed by its client."""
    event: Json = {"type": "session.closed", "session": session}
    if stream_id is not None:
        event["stream_id"] = stream_id
    return event
