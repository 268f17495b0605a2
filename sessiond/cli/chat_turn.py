"""A turn on the client's side, built from the server's frames. No I/O, no clock."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["completed", "incomplete", "failed", "refused", "cut"]


class ProtocolFaultError(Exception):
    """The server sent a frame that is not a JSON object; later frames can't be trusted."""


_WAITED_FOR = {"slot": "a free slot", "blocks": "memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyText:
    """A part of the reply."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message for the user; the turn continues."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStats:
    """Statistics of a turn, in tokens, and in seconds measured by the client.

    `reused_tokens`: their KV was on the device. `restored_tokens`: their KV was copied from a tier
    (`restored_from` is the slowest one). `recomputed_tokens`: their KV had been evicted.
    """

    reused_tokens: int
    recomputed_tokens: int
    new_tokens: int
    output_tokens: int
    ttft_s: float | None
    total_s: float
    tokens_per_s: float | None
    restored_tokens: int = 0
    restored_from: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """How a turn ended. `tip`: the response that the next turn continues (None: unchanged)."""

    outcome: Outcome
    detail: str = ""
    code: str = ""
    tip: str | None = None
    stats: TurnStats | None = None


TurnPart = ReplyText | Notice | TurnEnd


class ChatTurn:
    """State of one turn: takes frames with their arrival times, returns parts to show.

    Unknown events and fields are ignored.
    """

    def __init__(self, *, sent_at_s: float) -> None:
        self._sent_at_s = sent_at_s
        self._first_text_at_s: float | None = None
        self.response_id: str | None = None
        self.session_id: str | None = None
        self.text = ""
        self.end: TurnEnd | None = None

    def feed(self, frame: str | bytes, *, at_s: float) -> list[TurnPart]:
        """Process one frame.

        Raises:
            ProtocolFaultError: the frame is not a JSON object.
        """
        return list(self._parts(_parse(frame), at_s))

    def cut(self, detail: str) -> TurnEnd:
        """End the turn because the connection was lost."""
        self.end = TurnEnd(outcome="cut", detail=detail)
        return self.end

    def _parts(self, event: dict[str, Any], at_s: float) -> Iterator[TurnPart]:
        response = _object(event.get("response"))
        match kind := _text(event.get("type")):
            case "response.created":
                self.response_id = _text(response.get("id")) or None
                self._note_session(response)
            case "response.queued":
                yield Notice(text="waiting")
            case "response.output_text.delta":
                yield from self._more(_text(event.get("delta")), at_s)
            case "response.completed" | "response.incomplete" | "response.failed":
                yield from self._finish(response, kind.removeprefix("response."), at_s)
            case "error":
                self.end = _refusal(event)
                yield self.end
            case "session.waiting":
                what, place = _text(event.get("for")), event.get("position")
                yield Notice(text=f"waiting for {_WAITED_FOR.get(what, what)}, number {place}")
            case "session.context_changed":
                yield Notice(text=_context_change(event))
            case "session.summary_overdue":
                tokens, threshold = event.get("tokens"), event.get("threshold")
                text = f"the summary is overdue: {tokens} tokens, beyond {threshold}"
                yield Notice(text=text)
            case "session.degraded":
                reason = _text(event.get("reason")).replace("_", " ")
                yield Notice(text=f"{_text(event.get('step'))}: {reason}")
            case _:
                pass

    def _note_session(self, response: dict[str, Any]) -> None:
        self.session_id = _text(_object(response.get("conversation")).get("id")) or self.session_id

    def _more(self, text: str, at_s: float) -> Iterator[ReplyText]:
        if not text:
            return
        if self._first_text_at_s is None:
            self._first_text_at_s = at_s
        self.text += text
        yield ReplyText(text=text)

    def _finish(self, response: dict[str, Any], status: str, at_s: float) -> Iterator[TurnPart]:
        self._note_session(response)
        whole = _output_text(response)
        if whole.startswith(self.text) and len(whole) > len(self.text):
            yield from self._more(whole[len(self.text) :], at_s)  # if the server sent no deltas
        self.end = self._ending(response, status, at_s)
        yield self.end

    def _ending(self, response: dict[str, Any], status: str, at_s: float) -> TurnEnd:
        stats = self._stats(response, at_s)
        identity = _text(response.get("id")) or None
        if status == "completed":
            return TurnEnd(outcome="completed", tip=identity, stats=stats)
        if status == "incomplete":
            reason = _text(_object(response.get("incomplete_details")).get("reason"))
            return TurnEnd(outcome="incomplete", detail=reason, tip=identity, stats=stats)
        error = _object(response.get("error"))
        return TurnEnd(
            outcome="failed",
            detail=_text(error.get("message")) or "the server gave no reason",
            code=_text(error.get("code")),
            stats=stats,
        )

    def _stats(self, response: dict[str, Any], at_s: float) -> TurnStats | None:
        usage = _object(response.get("usage"))
        if not usage:
            return None
        extension = _object(response.get("sessiond"))
        cached = _count(_object(usage.get("input_tokens_details")).get("cached_tokens"))
        restored = _count(extension.get("restored_tokens"))
        recomputed = _count(extension.get("recomputed_tokens"))
        output = _count(usage.get("output_tokens"))
        first = self._first_text_at_s
        decode_s = at_s - first if first is not None else 0.0
        return TurnStats(
            reused_tokens=max(0, cached - restored),
            restored_tokens=restored,
            restored_from=_text(extension.get("restored_from")) if restored else "none",
            recomputed_tokens=recomputed,
            new_tokens=max(0, _count(usage.get("input_tokens")) - cached - recomputed),
            output_tokens=output,
            ttft_s=None if first is None else first - self._sent_at_s,
            total_s=at_s - self._sent_at_s,
            tokens_per_s=(output - 1) / decode_s if decode_s > 0 and output > 1 else None,
        )


def _parse(frame: str | bytes) -> dict[str, Any]:
    try:
        event = json.loads(frame)
    except ValueError as error:
        raise ProtocolFaultError(f"the frame is not JSON: {error}") from error
    if not isinstance(event, dict):
        raise ProtocolFaultError(f"the frame must be a JSON object (got {type(event).__name__})")
    return event


def _refusal(event: dict[str, Any]) -> TurnEnd:
    error = _object(event.get("error"))
    message = _text(error.get("message")) or "the server gave no reason"
    return TurnEnd(outcome="refused", detail=message, code=_text(error.get("code")))


def _context_change(event: dict[str, Any]) -> str:
    before, after = _count(event.get("tokens_before")), _count(event.get("tokens_after"))
    dropped = _count(event.get("dropped_turns"))
    turns = f", {dropped} turn{'s' if dropped > 1 else ''} dropped" if dropped else ""
    return f"context changed ({_text(event.get('reason'))}): {before} to {after} tokens{turns}"


def _output_text(response: dict[str, Any]) -> str:
    output = response.get("output")
    messages = [_object(item) for item in output] if isinstance(output, list) else []
    contents = [item.get("content") for item in messages if item.get("type") == "message"]
    parts = [_object(part) for content in contents if isinstance(content, list) for part in content]
    return "".join(_text(part.get("text")) for part in parts if part.get("type") == "output_text")


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
