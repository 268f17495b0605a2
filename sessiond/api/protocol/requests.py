"""Decodes frames of the socket and HTTP bodies to validated requests.

This module classifies each field of the Responses API: used, accepted as neutral (`NEUTRAL`),
accepted without effect (`NO_EFFECT`), or refused by name. Sources: OpenAI Responses API; RFC 8259.
"""

import re
from dataclasses import dataclass
from typing import Literal, TypedDict, assert_never

from sessiond.api.protocol import fields
from sessiond.api.protocol.fields import Neutral
from sessiond.api.protocol.items import decode_input
from sessiond.api.protocol.json_text import parse_object
from sessiond.api.protocol.policies import (
    UPDATE_KEYS,
    SessionUpdate,
    decode_context_management,
    decode_session_update,
)
from sessiond.domain import UNSET, TurnRequest, Unset
from sessiond.errors import RequestError
from sessiond.quota import PRIORITIES, PriorityName

MAX_ID = 128
MAX_MODEL = 256
MAX_LABEL = 512
MAX_IDEMPOTENCY_KEY = 255
MAX_SEED = 2**63 - 1
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
MAX_INCLUDES = 32
MIN_REPETITION_PENALTY = 0.1
MAX_BIASES = 300
MAX_BIAS = 100.0
MAX_DEADLINE_MS = 24 * 3600 * 1000
TRUNCATIONS: tuple[Literal["auto", "disabled"], ...] = ("auto", "disabled")
FRAME_TYPES: tuple[
    Literal[
        "response.create", "response.resume", "response.cancel", "session.update", "session.close"
    ],
    ...,
] = ("response.create", "response.resume", "response.cancel", "session.update", "session.close")

_IDEMPOTENCY_KEY = re.compile(f"[ -~]{{1,{MAX_IDEMPOTENCY_KEY}}}")
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,8}")
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")

_USED = frozenset({
    "model", "input", "instructions", "conversation", "previous_response_id", "generate",
    "max_output_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "truncation",
    "metadata", "context_management", "store", "background", "repetition_penalty",
    "frequency_penalty", "presence_penalty", "logit_bias",
})  # fmt: skip
# fields for tools, users and billing, which change nothing on this server
NO_EFFECT = frozenset({
    "parallel_tool_calls", "max_tool_calls", "user", "safety_identifier", "prompt_cache_key",
})  # fmt: skip
NEUTRAL = {
    "moderation": Neutral(values=(), allowed="null"),
    "prompt": Neutral(values=(), allowed="null"),
    "prompt_cache_options": Neutral(
        values=({}, {"mode": "implicit"}), allowed='null or "implicit"'
    ),
    "prompt_cache_retention": Neutral(values=("in_memory",), allowed='null or "in_memory"'),
    "reasoning": Neutral(values=({}, {"effort": "none"}), allowed='null or {"effort":"none"}'),
    "service_tier": Neutral(values=("auto", "default"), allowed='null, "auto" or "default"'),
    "stream_options": Neutral(values=({}, {"include_obfuscation": False}), allowed="null"),
    "text": Neutral(
        values=(
            {},
            {"format": {"type": "text"}},
            {"format": {"type": "text"}, "verbosity": "medium"},
            {"verbosity": "medium"},
        ),
        allowed='plain text: {"format":{"type":"text"}}',
    ),
    "tool_choice": Neutral(values=("auto", "none"), allowed='"auto" or "none": there are no tools'),
    "tools": Neutral(values=([],), allowed="an empty array: this server runs no tools"),
    "top_logprobs": Neutral(values=(0,), allowed="0"),
}
# parts of items that never occur here, so nothing is omitted
INCLUDABLE = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
BODY_KEYS = _USED | NO_EFFECT | NEUTRAL.keys() | {"include", "stream"}
_CREATE_KEYS = BODY_KEYS | {"type", "stream_id", "idempotency_key"}
_CANCEL_KEYS = frozenset({"type", "stream_id", "response_id", "keep"})
_RESUME_KEYS = frozenset({"type", "stream_id", "response_id", "starting_after"})
_UPDATE_KEYS = frozenset({"type", "stream_id", "session"}) | UPDATE_KEYS
_CLOSE_KEYS = frozenset({"type", "stream_id", "session"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateFrame:
    """`response.create`: one turn in the lane `stream_id` (None: the unnamed lane)."""

    stream_id: str | None
    request: TurnRequest
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeFrame:
    """`response.resume`: a turn's events after a number (None: all events)."""

    stream_id: str | None
    response_id: str
    starting_after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelFrame:
    """`response.cancel`.

    Without `response_id`: the oldest unfinished turn of the lane. Without either: all turns that
    the socket has begun.
    """

    stream_id: str | None
    response_id: str | None
    keep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFrame:
    """`session.update`."""

    stream_id: str | None
    session: str
    update: SessionUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseFrame:
    """`session.close`."""

    stream_id: str | None
    session: str


ClientFrame = CreateFrame | ResumeFrame | CancelFrame | UpdateFrame | CloseFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateBody:
    """The body of `POST /v1/responses`."""

    request: TurnRequest
    stream: bool


def lane_of(frame: dict[str, object]) -> str | None:
    """Return the lane that a frame names, even if the rest is invalid; None if it names none."""
    name = frame.get("stream_id")
    return name if isinstance(name, str) and _STREAM_ID.fullmatch(name) else None


def decode_frame(frame: dict[str, object]) -> ClientFrame:
    """Read a parsed frame of the socket.

    Raises:
        RequestError: names the field, its value and the allowed values.
    """
    kind = fields.one_of("type", frame.get("type"), FRAME_TYPES)
    stream_id = _stream_id(frame.get("stream_id"))
    match kind:
        case "response.create":
            fields.only_known(frame, _CREATE_KEYS)
            fields.boolean("stream", frame.get("stream"), default=True)
            return CreateFrame(
                stream_id=stream_id,
                request=_turn_request(frame),
                idempotency_key=decode_idempotency_key(frame.get("idempotency_key")),
            )
        case "response.resume":
            fields.only_known(frame, _RESUME_KEYS)
            return ResumeFrame(
                stream_id=stream_id,
                response_id=fields.text("response_id", frame.get("response_id"), longest=MAX_ID),
                starting_after=optional_integer("starting_after", frame, 0),
            )
        case "response.cancel":
            fields.only_known(frame, _CANCEL_KEYS)
            return CancelFrame(
                stream_id=stream_id,
                response_id=fields.optional_text(
                    "response_id", frame.get("response_id"), longest=MAX_ID
                ),
                keep=fields.boolean("keep", frame.get("keep"), default=True),
            )
        case "session.update":
            fields.only_known(frame, _UPDATE_KEYS)
            return UpdateFrame(
                stream_id=stream_id,
                session=fields.text("session", frame.get("session"), longest=MAX_ID),
                update=decode_session_update(frame),
            )
        case "session.close":
            fields.only_known(frame, _CLOSE_KEYS)
            session = fields.text("session", frame.get("session"), longest=MAX_ID)
            return CloseFrame(stream_id=stream_id, session=session)
        case _:
            assert_never(kind)


def decode_idempotency_key(value: object, name: str = "idempotency_key") -> str | None:
    """Read an idempotency key: up to 255 characters of printable ASCII.

    Raises:
        RequestError: the value is invalid.
    """
    if value is None:
        return None
    if not isinstance(value, str) or not _IDEMPOTENCY_KEY.fullmatch(value):
        fields.refuse(name, value, f"1 to {MAX_IDEMPOTENCY_KEY} characters of printable ASCII")
    return value


def decode_create_body(body: bytes) -> CreateBody:
    """Read the body of `POST /v1/responses`.

    Raises:
        RequestError: names the field, its value and the allowed values.
    """
    pairs = parse_object(body)
    fields.only_known(pairs, BODY_KEYS)
    stream = fields.boolean("stream", pairs.get("stream"), default=False)
    return CreateBody(request=_turn_request(pairs), stream=stream)


def decode_metadata(value: object, name: str = "metadata") -> dict[str, str]:
    """Read metadata: up to 16 pairs of strings, keys of up to 64, values of up to 512 characters.

    Raises:
        RequestError: names the pair.
    """
    if value is None:
        return {}
    pairs = fields.mapping(name, value)
    if len(pairs) > MAX_METADATA:
        fields.refuse(name, f"{len(pairs)} pairs", f"an object of up to {MAX_METADATA} pairs")
    found = {}
    for key, one in pairs.items():
        if len(key) > MAX_METADATA_KEY:
            fields.refuse(name, key, f"an object with keys of up to {MAX_METADATA_KEY} characters")
        found[key] = fields.text(f"{name}.{key}", one, longest=MAX_METADATA_VALUE)
    return found


def _turn_request(pairs: dict[str, object]) -> TurnRequest:
    fields.only_neutral(pairs, NEUTRAL)
    _check_without_effect(pairs)
    metadata = decode_metadata(pairs.get("metadata"))
    conversation = _conversation(pairs.get("conversation"))
    previous = fields.optional_text(
        "previous_response_id", pairs.get("previous_response_id"), longest=MAX_ID
    )
    if conversation is not None and previous is not None:
        message = (
            f"previous_response_id must be absent with conversation (got {fields.shown(previous)})"
        )
        raise RequestError("invalid_value", message, param="previous_response_id")
    store = _store(pairs.get("store"))
    background = fields.boolean("background", pairs.get("background"), default=False)
    if background and store is False:
        message = "store must be true with background=true (got false): a background turn has to"
        message += " be stored"
        raise RequestError("invalid_value", message, param="background")
    return TurnRequest(
        model=fields.optional_text("model", pairs.get("model"), longest=MAX_MODEL),
        input=decode_input(pairs.get("input")),
        instructions=_instructions(pairs),
        conversation=conversation,
        previous_response_id=previous,
        generate=fields.boolean("generate", pairs.get("generate"), default=True),
        max_output_tokens=optional_integer("max_output_tokens", pairs, 1),
        temperature=fields.number("temperature", pairs.get("temperature"), 1.0, 0.0, 2.0),
        top_p=fields.number("top_p", pairs.get("top_p"), 1.0, 0.0, 1.0),
        top_k=optional_integer("top_k", pairs, 0) or 0,
        min_p=fields.number("min_p", pairs.get("min_p"), 0.0, 0.0, 1.0),
        seed=optional_integer("seed", pairs, 0, MAX_SEED),
        stop=decode_stop(pairs.get("stop")),
        **decode_penalties(pairs),
        truncation=_truncation(pairs.get("truncation")),
        policy=decode_context_management(pairs.get("context_management")),
        deadline_ms=_deadline_ms(metadata.get("deadline_ms")),
        priority=_priority(metadata.get("priority")),
        metadata=metadata,
        store=store,
        background=background,
    )


def _check_without_effect(pairs: dict[str, object]) -> None:
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        fields.optional_text(name, pairs.get(name), longest=MAX_LABEL)
    fields.boolean("parallel_tool_calls", pairs.get("parallel_tool_calls"), default=True)
    optional_integer("max_tool_calls", pairs, 0)
    include = pairs.get("include")
    listed = fields.sequence("include", [] if include is None else include, most=MAX_INCLUDES)
    for index, part in enumerate(listed):
        if part not in INCLUDABLE:
            fields.unsupported(f"include[{index}]", part, fields.either(INCLUDABLE))


def _stream_id(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _STREAM_ID.fullmatch(value):
        fields.refuse("stream_id", value, "1 to 256 characters of A-Z a-z 0-9 _ . -")
    return value


def _instructions(pairs: dict[str, object]) -> str | Unset | None:
    if "instructions" not in pairs:
        return UNSET
    return fields.optional_text("instructions", pairs["instructions"])


def _conversation(value: object) -> str | None:
    if isinstance(value, dict):
        fields.only_known(value, frozenset({"id"}), "conversation.")
        return fields.text("conversation.id", value.get("id"), longest=MAX_ID)
    return fields.optional_text("conversation", value, longest=MAX_ID)


def optional_integer(
    name: str, pairs: dict[str, object], lowest: int, highest: int = fields.MAX_INT
) -> int | None:
    """Read an integer in a range; absent and null are None.

    Raises:
        RequestError: the value is invalid.
    """
    value = pairs.get(name)
    return None if value is None else fields.integer(name, value, lowest, highest)


def _store(value: object) -> bool | None:
    return None if value is None else fields.boolean("store", value, default=True)


def decode_stop(value: object) -> tuple[str, ...]:
    """Read `stop`: one string or several.

    Raises:
        RequestError: names the invalid part.
    """
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else fields.sequence("stop", value)
    if len(stops) > MAX_STOPS:
        fields.refuse("stop", f"{len(stops)} strings", f"an array of up to {MAX_STOPS} strings")
    found = tuple(
        fields.text(f"stop[{index}]", one, longest=MAX_STOP_CHARS)
        for index, one in enumerate(stops)
    )
    if "" in found:
        fields.refuse("stop", "", "one or more non-empty strings")
    return found


class Penalties(TypedDict):
    """Fields of a `TurnRequest`."""

    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: tuple[tuple[int, float], ...]


def decode_penalties(pairs: dict[str, object]) -> Penalties:
    """Read the penalties and the bias.

    Raises:
        RequestError: names the invalid part.
    """

    def number(name: str, default: float, lowest: float) -> float:
        return fields.number(name, pairs.get(name), default, lowest, 2.0)

    return Penalties(
        repetition_penalty=number("repetition_penalty", 1.0, MIN_REPETITION_PENALTY),
        frequency_penalty=number("frequency_penalty", 0.0, -2.0),
        presence_penalty=number("presence_penalty", 0.0, -2.0),
        logit_bias=_logit_bias(pairs.get("logit_bias")),
    )


def _logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    pairs = fields.mapping("logit_bias", value)
    if len(pairs) > MAX_BIASES:
        fields.refuse("logit_bias", f"{len(pairs)} ids", f"an object of up to {MAX_BIASES} ids")
    found = []
    for key, bias in pairs.items():
        if not _TOKEN_ID.fullmatch(key):
            fields.refuse("logit_bias", key, "an object whose keys are token ids")
        name = f"logit_bias.{key}"
        found.append((int(key), fields.number(name, bias, 0.0, -MAX_BIAS, MAX_BIAS)))
    return tuple(found)


def _truncation(value: object) -> Literal["auto", "disabled"] | None:
    return None if value is None else fields.one_of("truncation", value, TRUNCATIONS)


def _priority(value: str | None) -> PriorityName | None:
    return None if value is None else fields.one_of("metadata.priority", value, PRIORITIES)


def _deadline_ms(value: str | None) -> int | None:
    if value is None:
        return None
    allowed = f'a string of digits, "1" to "{MAX_DEADLINE_MS}"'
    if not (value.isascii() and value.isdigit() and len(value) <= len(str(MAX_DEADLINE_MS))):
        fields.refuse("metadata.deadline_ms", value, allowed)
    if not 1 <= int(value) <= MAX_DEADLINE_MS:
        fields.refuse("metadata.deadline_ms", value, allowed)
    return int(value)
