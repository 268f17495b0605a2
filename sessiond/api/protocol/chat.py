"""Decodes bodies of `/v1/chat/completions` and encodes turns as completions and chunks.

Source: OpenAI Chat Completions API. Each of its fields is used, accepted as neutral, or refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from sessiond.api.protocol import fields
from sessiond.api.protocol.fields import Neutral
from sessiond.api.protocol.items import ROLES, decode_content
from sessiond.api.protocol.json_text import parse_object
from sessiond.api.protocol.requests import (
    MAX_LABEL,
    MAX_MODEL,
    MAX_SEED,
    decode_metadata,
    decode_penalties,
    decode_stop,
    optional_integer,
)
from sessiond.api.protocol.resources import Json, error_object
from sessiond.domain import (
    ContextChanged,
    InputItem,
    SessionDegraded,
    SessionWaiting,
    SummaryOverdue,
    TextDelta,
    TurnAccepted,
    TurnBegun,
    TurnError,
    TurnFinished,
    TurnLogEntry,
    TurnQueued,
    TurnRequest,
    TurnUsage,
)
from sessiond.errors import STATUS

MAX_MESSAGES = 10_000
_USED = frozenset({
    "model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop",
    "seed", "stream", "stream_options", "metadata", "store", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "logit_bias",
})  # fmt: skip
NO_EFFECT = frozenset({"user", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"})
NEUTRAL = {
    "audio": Neutral(values=(), allowed="null"),
    "function_call": Neutral(values=("auto", "none"), allowed='"auto" or "none"'),
    "functions": Neutral(values=([],), allowed="an empty array: this server runs no tools"),
    "logprobs": Neutral(values=(False,), allowed="false"),
    "modalities": Neutral(values=(["text"],), allowed='["text"]'),
    "moderation": Neutral(values=(), allowed="null"),
    "n": Neutral(values=(1,), allowed="1"),
    "prediction": Neutral(values=(), allowed="null"),
    "prompt_cache_options": Neutral(
        values=({}, {"mode": "implicit"}), allowed='null or "implicit"'
    ),
    "prompt_cache_retention": Neutral(values=("in_memory",), allowed='null or "in_memory"'),
    "reasoning_effort": Neutral(values=("none",), allowed='null or "none"'),
    "response_format": Neutral(values=({"type": "text"},), allowed='{"type":"text"}'),
    "service_tier": Neutral(values=("auto", "default"), allowed='null, "auto" or "default"'),
    "tool_choice": Neutral(values=("auto", "none"), allowed='"auto" or "none": there are no tools'),
    "tools": Neutral(values=([],), allowed="an empty array: this server runs no tools"),
    "top_logprobs": Neutral(values=(0,), allowed="0"),
    "verbosity": Neutral(values=("medium",), allowed='null or "medium"'),
    "web_search_options": Neutral(values=(), allowed="null"),
}
BODY_KEYS = _USED | NO_EFFECT | NEUTRAL.keys()
MESSAGE_KEYS = frozenset({
    "role", "content", "refusal", "annotations", "audio", "tool_calls", "function_call", "name",
})  # fmt: skip
# parts of this server's replies that clients resend
NEUTRAL_PARTS = {
    "annotations": Neutral(values=([],), allowed="an empty array"),
    "audio": Neutral(values=(), allowed="null"),
    "function_call": Neutral(values=(), allowed="null"),
    "name": Neutral(values=(), allowed="null: names are not sent to the model"),
    "refusal": Neutral(values=("",), allowed="null"),
    "tool_calls": Neutral(values=([],), allowed="null: this server runs no tools"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody:
    """Body of `POST /v1/chat/completions`. The request's input is the whole history."""

    request: TurnRequest
    stream: bool
    include_usage: bool


def decode_chat_body(body: bytes) -> ChatBody:
    """Read a body.

    Raises:
        RequestError: names the field, its value and the allowed values.
    """
    pairs = parse_object(body)
    fields.only_known(pairs, BODY_KEYS)
    fields.only_neutral(pairs, NEUTRAL)
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        fields.optional_text(name, pairs.get(name), longest=MAX_LABEL)
    fields.boolean("parallel_tool_calls", pairs.get("parallel_tool_calls"), default=True)
    stream = fields.boolean("stream", pairs.get("stream"), default=False)
    # stored unless `store` is false: otherwise a resent history could not be found
    is_stored = fields.boolean("store", pairs.get("store"), default=True)
    request = TurnRequest(
        model=fields.optional_text("model", pairs.get("model"), longest=MAX_MODEL),
        input=_messages(pairs.get("messages")),
        max_output_tokens=_max_tokens(pairs),
        temperature=fields.number("temperature", pairs.get("temperature"), 1.0, 0.0, 2.0),
        top_p=fields.number("top_p", pairs.get("top_p"), 1.0, 0.0, 1.0),
        top_k=optional_integer("top_k", pairs, 0) or 0,
        min_p=fields.number("min_p", pairs.get("min_p"), 0.0, 0.0, 1.0),
        seed=optional_integer("seed", pairs, 0, MAX_SEED),
        stop=decode_stop(pairs.get("stop")),
        **decode_penalties(pairs),
        metadata=decode_metadata(pairs.get("metadata")),
        store=None if is_stored else False,
    )
    include_usage = _include_usage(pairs.get("stream_options"), stream=stream)
    return ChatBody(request=request, stream=stream, include_usage=include_usage)


class ChatEncoder:
    """Encodes one turn as chunks and as one completion."""

    def __init__(
        self, accepted: TurnAccepted, *, fingerprint: str, include_usage: bool = False
    ) -> None:
        self._accepted = accepted
        self._fingerprint = fingerprint
        self._include_usage = include_usage
        self._sent = ""
        self._finished: TurnFinished | None = None

    def opening_events(self) -> Iterator[Json]:
        """Yield the first chunk, which contains the role."""
        yield self._chunk({"role": "assistant", "content": "", "refusal": None})

    def encode(self, entry: TurnLogEntry) -> Iterator[Json]:
        """Yield the chunks of a log entry; for a failed turn, its error."""
        match entry:
            case TextDelta():
                yield from self._delta(entry.text)
            case TurnFinished():
                self._finished = entry
                if entry.error is not None:
                    yield {"error": chat_error(entry.error)}
                    return
                if entry.text.startswith(self._sent):
                    yield from self._delta(entry.text[len(self._sent) :])
                yield self._chunk({}, finish_reason(entry))
                if self._include_usage:
                    yield {**self._object("chat.completion.chunk"), "choices": [],
                           "usage": chat_usage(entry.usage)}  # fmt: skip
            case (
                TurnQueued()
                | SessionWaiting()
                | TurnBegun()
                | ContextChanged()
                | SummaryOverdue()
                | SessionDegraded()
            ):
                return  # this API has no equivalent
            case _:
                assert_never(entry)

    def completion(self) -> Json:
        """Build the whole completion after the turn has ended."""
        finished = self._finished
        if finished is None:
            raise RuntimeError("the turn has not ended")
        message: Json = {
            "role": "assistant",
            "content": finished.text,
            "refusal": None,
            "annotations": [],
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason(finished),
        }
        return {
            **self._object("chat.completion"),
            "choices": [choice],
            "usage": chat_usage(finished.usage),
        }

    def _delta(self, text: str) -> Iterator[Json]:
        if text:
            self._sent += text
            yield self._chunk({"content": text})

    def _chunk(self, delta: Json, reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = {**self._object("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self._include_usage else chunk

    def _object(self, kind: str) -> Json:
        return {
            "id": self._accepted.response_id,
            "object": kind,
            "created": int(self._accepted.created_at),
            "model": self._accepted.model,
            "service_tier": "default",
            "system_fingerprint": self._fingerprint,
        }


def finish_reason(finished: TurnFinished) -> str:
    """`stop`: complete; `length`: cut, `GET /v1/responses/{id}` has the reason."""
    return "stop" if finished.status == "completed" else "length"


def chat_usage(usage: TurnUsage) -> Json:
    """Build the usage: `cached_tokens` are those that were not computed."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def chat_error(error: TurnError) -> Json:
    """Build the error event of a stream that has already begun."""
    return error_object(error.code, STATUS[error.code], error.message)


def _messages(value: object) -> tuple[InputItem, ...]:
    listed = fields.sequence("messages", value)
    if not 1 <= len(listed) <= MAX_MESSAGES:
        allowed = f"an array of 1 to {MAX_MESSAGES} messages"
        fields.refuse("messages", f"{len(listed)} messages", allowed)
    return tuple(_message(f"messages[{index}]", one) for index, one in enumerate(listed))


def _message(name: str, value: object) -> InputItem:
    message = fields.mapping(name, value)
    fields.only_known(message, MESSAGE_KEYS, f"{name}.")
    for key, neutral in NEUTRAL_PARTS.items():
        if message.get(key) is not None and message[key] not in neutral.values:
            fields.unsupported(f"{name}.{key}", message[key], neutral.allowed)
    role = fields.one_of(f"{name}.role", message.get("role"), ROLES)
    return InputItem(role=role, text=decode_content(f"{name}.content", message.get("content")))


def _max_tokens(pairs: dict[str, object]) -> int | None:
    """`max_tokens` is the older name; if both are given, the newer one applies."""
    older = optional_integer("max_tokens", pairs, 1)
    newer = optional_integer("max_completion_tokens", pairs, 1)
    return older if newer is None else newer


def _include_usage(value: object, *, stream: bool) -> bool:
    if value is None:
        return False
    options = fields.mapping("stream_options", value)
    if not stream:
        fields.refuse("stream_options", value, "absent without stream=true")
    known = frozenset({"include_usage", "include_obfuscation"})
    fields.only_known(options, known, "stream_options.")
    neutral = Neutral(values=(False,), allowed="false")
    obfuscation = {"stream_options.include_obfuscation": options.get("include_obfuscation")}
    fields.only_neutral(obfuscation, {"stream_options.include_obfuscation": neutral})
    return fields.boolean(
        "stream_options.include_usage", options.get("include_usage"), default=False
    )
