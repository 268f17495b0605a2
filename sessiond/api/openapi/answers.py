"""Schemas of responses. Records that are sent unchanged are described by their types."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

import msgspec

from engine.ipc.queries import BLOCK_STATES
from engine.system.process_memory import ProcessMemory
from sessiond.api.openapi.words import (
    BOOLEAN,
    COUNT,
    NUMBER,
    STRING,
    UNIX_TIME,
    answer,
    array,
    const,
    nullable,
    reference,
    words,
)
from sessiond.api.protocol.items import ROLES
from sessiond.api.protocol.resources import Json, MessageStatus, ResponseStatus
from sessiond.domain import IncompleteReason, ServiceStats, SessionView
from sessiond.errors import STATUS
from sessiond.quota import Quota
from sessiond.store.account_records import Audit, KeyRecord, UserRecord

_NULLABLE_STRING = nullable(STRING)
_EMPTY = {"type": "array", "maxItems": 0}


def answer_schemas() -> dict[str, Json]:
    """Return the schemas by name."""
    return _conversation_schemas() | _record_schemas() | _server_schemas()


def error_schema(status: int) -> Json:
    """Schema of an error body with this status; `code` is null for an unknown path or method."""
    codes = [code for code, one in STATUS.items() if one == status]
    inner = answer(
        {
            "type": STRING,
            "code": {"enum": [*codes, None]},
            "param": _NULLABLE_STRING | {"description": "The invalid field."},
            "message": STRING,
        }
    )
    return answer({"error": inner})


def _conversation_schemas() -> dict[str, Json]:
    return {
        "Response": _response(),
        "Usage": _usage(),
        "TurnMemory": _turn_memory(),
        "Message": _message(),
        "Conversation": answer(
            {
                "id": STRING,
                "object": const("conversation"),
                "created_at": UNIX_TIME,
                "metadata": {"type": "object", "additionalProperties": STRING},
            }
        ),
        "Deleted": answer({"id": STRING, "object": STRING, "deleted": const(True)}),
        "MessageList": _list("Message"),
        "Event": answer(
            {"data": {"type": "string", "contentMediaType": "application/json"}},
            sometimes={"event": STRING},
        )
        | {"description": "One event of the stream."},
        "Model": answer(
            {"id": STRING, "object": const("model"), "created": UNIX_TIME, "owned_by": STRING}
        ),
        "ModelList": answer({"object": const("list"), "data": array(reference("Model"))}),
    }


def _record_schemas() -> dict[str, Json]:
    key = {"object": const("key")}
    return {
        **_parts_of(SessionView),
        "Session": _record(SessionView, sometimes=("page_table",)),
        "SessionList": _list("Session"),
        "User": _record(UserRecord, {"object": const("user")}),
        "UserWithUsage": _record(
            UserRecord, {"object": const("user"), "usage": reference("UserUsage")}
        ),
        "UserList": _list("User"),
        "Key": _record(KeyRecord, key),
        "IssuedKey": _record(KeyRecord, key | {"key": STRING}),
        "KeyList": _list("Key"),
        "Audit": _record(Audit, {"object": const("audit"), "id": COUNT}),
        "AuditList": _list("Audit"),
        "Quota": _record(Quota, {"user": STRING, "usage": reference("UserUsage")}),
        "UserUsage": _counts(
            "sessions",
            "concurrent_turns",
            "tokens_this_minute",
            "tokens_today",
            "tokens_total",
            "byte_seconds",
        ),
        "UserPolicy": answer({"user": STRING, "policy": nullable(reference("Policy"))}),
    }


def _server_schemas() -> dict[str, Json]:
    blocks = ("total_blocks", "free_blocks", "cached_blocks", "active_blocks")
    held = ("host_blocks", "disk_blocks", "running", "waiting", "max_num_seqs")
    capacity = _counts("block_size", "kv_bytes_per_token", *blocks, *held)["properties"]
    sizes = ("leaked_blocks", "device_bytes", "host_bytes", "disk_bytes", "rss_bytes")
    rates = _counts("blocks", "read_bytes_per_s", "write_bytes_per_s")["properties"]
    tier = answer(
        {"name": STRING, "bytes": COUNT}, sometimes={**rates, "path": STRING, "reason": STRING}
    )
    return {
        "Health": answer({"status": words(["ok", "draining", "engine_unavailable"])}),
        "Capacity": answer(
            {
                "accepting": BOOLEAN,
                **capacity,
                "sessions": _counts("live", "idle", "parked"),
                "memory": _counts("free_bytes", "weights_bytes", "activation_bytes", "pool_bytes"),
                "fits": {"type": "object", "additionalProperties": COUNT},
                "pressure": answer(
                    {
                        "level": words(["none", "warning", "high"]),
                        "demand_tokens": COUNT,
                        "demand_ratio": NUMBER,
                    }
                ),
            }
        ),
        "Memory": answer(
            {
                "ok": BOOLEAN,
                "violations": array(STRING),
                **_counts(*blocks, *sizes)["properties"],
                "arithmetic": STRING,
                "attention_reason": STRING,
                "model": STRING,
                "tiers": array(tier),
                "engine": answer(_process() | {"weights_bytes": COUNT}),
                "gateway": answer(
                    _process() | _service_stats_schema() | {"sockets": COUNT, "tasks": COUNT},
                ),
                "sessions": _counts("live", "idle", "parked"),
            }
        ),
        "Pool": _pool(),
        "Drain": answer(
            {"object": const("drain"), "draining": BOOLEAN, "done": BOOLEAN, "sockets": COUNT}
        ),
        "Document": {"type": "object", "description": "OpenAPI 3.1.", "required": ["openapi"]},
    }


def _process() -> Json:
    return dict.fromkeys(ProcessMemory.__struct_fields__, COUNT)


def _service_stats_schema() -> Json:
    return dict.fromkeys((field.name for field in fields(ServiceStats)), COUNT) | {
        "session_ttl_s": NUMBER
    }


def _pool() -> Json:
    letters = "".join(BLOCK_STATES.values())
    legend = ", ".join(f"{letter} {state}" for state, letter in BLOCK_STATES.items())
    states = {
        "type": "string",
        "pattern": f"^[{letters}]*$",
        "description": f"One letter per block: {legend}.",
    }
    owners = {
        "type": "string",
        "contentEncoding": "base64",
        "description": "One little-endian int32 per block: the index of a session, or -1.",
    }
    counts = _counts("block_size", "kv_bytes_per_block", "total_blocks")["properties"]
    packed = {"states": states, "owners": owners, "sessions": array(STRING)}
    return answer({"object": const("pool"), **counts, **packed})


def _response() -> Json:
    reason = answer({"reason": words(get_args(IncompleteReason))})
    return answer(
        {
            "id": STRING,
            "object": const("response"),
            "created_at": UNIX_TIME,
            "status": words(get_args(ResponseStatus)),
            "background": BOOLEAN,
            "conversation": answer({"id": STRING}),
            "error": nullable(answer({"code": words(STATUS), "message": STRING})),
            "incomplete_details": nullable(reason),
            "instructions": _NULLABLE_STRING,
            "max_output_tokens": nullable(COUNT),
            "metadata": {"type": "object", "additionalProperties": STRING},
            "model": STRING,
            "output": array(reference("Message"), maxItems=1),
            "parallel_tool_calls": BOOLEAN,
            "previous_response_id": _NULLABLE_STRING,
            "service_tier": STRING,
            "store": BOOLEAN,
            "temperature": NUMBER,
            "text": answer({"format": answer({"type": const("text")})}),
            "tool_choice": STRING,
            "tools": _EMPTY,
            "top_logprobs": COUNT,
            "top_p": NUMBER,
            "truncation": words(["auto", "disabled"]),
        },
        sometimes={"usage": reference("Usage"), "sessiond": reference("TurnMemory")},
    )


def _usage() -> Json:
    return answer(
        {
            "input_tokens": COUNT,
            "input_tokens_details": _counts("cached_tokens", "cache_write_tokens"),
            "output_tokens": COUNT,
            "output_tokens_details": _counts("reasoning_tokens"),
            "total_tokens": COUNT,
        }
    )


def _turn_memory() -> Json:
    tokens = ("reused_tokens", "restored_tokens", "recomputed_tokens", "summary_tokens")
    return answer(
        {
            **_counts(*tokens, "kv_bytes", "blocks")["properties"],
            "restored_from": words(["device", "host", "disk", "none"]),
            "context": words(["full", "trimmed", "summarized"]),
            "fidelity": words(["exact", "shifted"]),
            "queue_ms": NUMBER,
            "ttft_ms": nullable(NUMBER),
            "total_ms": NUMBER,
        }
    )


def _message() -> Json:
    output = {
        "type": const("output_text"),
        "text": STRING,
        "annotations": _EMPTY,
        "logprobs": _EMPTY,
    }
    given = {"type": const("input_text"), "text": STRING}
    return answer(
        {
            "id": STRING,
            "type": const("message"),
            "role": words(ROLES),
            "status": words(get_args(MessageStatus)),
            "content": array({"anyOf": [answer(output), answer(given)]}),
        }
    )


def _list(name: str) -> Json:
    end: Json = {"type": ["string", "integer"], "description": '"" for an empty page.'}
    return answer(
        {
            "object": const("list"),
            "data": array(reference(name)),
            "first_id": end,
            "last_id": end,
            "has_more": BOOLEAN,
        }
    )


def _counts(*names: str) -> Json:
    return answer(dict.fromkeys(names, COUNT))


def _parts_of(record: type[Any]) -> dict[str, Json]:
    """Schemas of the nested records, by name."""
    _, parts = msgspec.json.schema_components([record], ref_template=reference("{name}")["$ref"])
    del parts[record.__name__]
    return {name: answer(schema["properties"]) for name, schema in parts.items()}


def _record(
    record: type[Any], beside: Mapping[str, Json] | None = None, *, sometimes: tuple[str, ...] = ()
) -> Json:
    """Schema of a record with all its fields and additional ones."""
    _, parts = msgspec.json.schema_components([record], ref_template=reference("{name}")["$ref"])
    fields = {
        name: {key: value for key, value in schema.items() if key != "default"}
        for name, schema in parts[record.__name__]["properties"].items()
    }
    rare = {name: fields.pop(name) for name in sometimes}
    return answer({**(beside or {}), **fields}, sometimes=rare)
