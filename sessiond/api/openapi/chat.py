"""Schemas of `/v1/chat/completions`."""

from sessiond.api.openapi.bodies import LABELS, content, decided, neutral_schema, sampling
from sessiond.api.openapi.words import (
    BOOLEAN,
    COUNT,
    NULL,
    STRING,
    UNIX_TIME,
    answer,
    array,
    body,
    const,
    integer,
    nullable,
    reference,
    text,
    words,
)
from sessiond.api.protocol import chat, requests
from sessiond.api.protocol.fields import MAX_INT
from sessiond.api.protocol.items import ROLES
from sessiond.api.protocol.resources import Json


def chat_schemas() -> dict[str, Json]:
    """Return the schemas by name."""
    return {
        "ChatMessage": _message(),
        "CreateChatCompletion": _create(),
        "ChatCompletion": _completion(),
        "ChatUsage": _usage(),
    }


def _message() -> Json:
    neutral = {name: neutral_schema(one) for name, one in chat.NEUTRAL_PARTS.items()}
    used = {
        "role": words(ROLES),
        "content": content(),
    }
    return body(decided(chat.MESSAGE_KEYS, used | neutral, {}), required=["role", "content"])


def _create() -> Json:
    used = sampling() | {
        "model": nullable(text(requests.MAX_MODEL)),
        "messages": array(reference("ChatMessage"), minItems=1, maxItems=chat.MAX_MESSAGES),
        "max_tokens": nullable(integer(1, MAX_INT)),
        "max_completion_tokens": nullable(integer(1, MAX_INT)),
        "metadata": nullable(reference("Metadata")),
        "store": nullable(BOOLEAN),
        "stream": nullable(BOOLEAN),
        "stream_options": nullable(_stream_options()),
        "parallel_tool_calls": nullable(BOOLEAN),
    }
    used |= dict.fromkeys(LABELS, nullable(text(requests.MAX_LABEL)))
    schema = body(decided(chat.BODY_KEYS, used, chat.NEUTRAL), required=["messages"])
    streamed = {"required": ["stream"], "properties": {"stream": const(True)}}
    plain = {"properties": {"stream_options": NULL}}
    return schema | {"anyOf": [streamed, plain]}


def _stream_options() -> Json:
    return body(
        {"include_usage": nullable(BOOLEAN), "include_obfuscation": {"enum": [False, None]}}
    )


def _completion() -> Json:
    message = answer(
        {
            "role": const("assistant"),
            "content": STRING,
            "refusal": NULL,
            "annotations": {"type": "array", "maxItems": 0},
        }
    )
    choice = answer(
        {
            "index": const(0),
            "message": message,
            "logprobs": NULL,
            "finish_reason": words(["stop", "length"]),
        }
    )
    return answer(
        {
            "id": STRING,
            "object": const("chat.completion"),
            "created": UNIX_TIME,
            "model": STRING,
            "service_tier": STRING,
            "system_fingerprint": STRING,
            "choices": array(choice, minItems=1, maxItems=1),
            "usage": reference("ChatUsage"),
        }
    )


def _usage() -> Json:
    def counts(*names: str) -> Json:
        return answer(dict.fromkeys(names, COUNT))

    tokens = ("prompt_tokens", "completion_tokens", "total_tokens")
    kinds = ("accepted_prediction_tokens", "rejected_prediction_tokens")
    details = {
        "prompt_tokens_details": counts("cached_tokens", "audio_tokens"),
        "completion_tokens_details": counts("reasoning_tokens", "audio_tokens", *kinds),
    }
    return answer({**counts(*tokens)["properties"], **details})
