"""Schemas of request bodies, built from the tables and bounds that validate requests.

A field that is validated but not described here, or described but unknown, fails at start.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from sessiond.accounts import NAME_PATTERN, RESERVED_NAME, RESERVED_START, ROLES
from sessiond.api.openapi.words import (
    BOOLEAN,
    NULL,
    STRING,
    array,
    body,
    const,
    digits_up_to,
    integer,
    nullable,
    number,
    reference,
    text,
    words,
)
from sessiond.api.protocol import items, policies, quotas, requests
from sessiond.api.protocol.fields import MAX_INT, Neutral
from sessiond.api.protocol.resources import Json
from sessiond.domain import Role
from sessiond.quota import PRIORITIES, QUOTA_FIELDS
from sessiond.sessions.names import MAX_NAME, OWN_ID_PREFIX

LABELS = ("user", "safety_identifier", "prompt_cache_key")


def body_schemas(context_policies: Mapping[str, Mapping[str, Any]]) -> dict[str, Json]:
    """Return the schemas by name. `context_policies`: parameter types by policy name."""
    return {
        "TextPart": _text_part(),
        "InputItem": _input_item(items.ROLES),
        "Metadata": _metadata(),
        "Policy": _policy(context_policies),
        "CreateResponse": _create_response(),
        "CancelResponse": body({"keep": nullable(BOOLEAN)}),
        "CreateConversation": body(
            {
                "id": nullable(_conversation_name()),
                "items": nullable(_items()),
                "metadata": _nullable("Metadata"),
            }
        ),
        "AtResponse": body({"response_id": nullable(text(requests.MAX_ID))}),
        "UpdateConversation": body({"metadata": _nullable("Metadata")}),
        "AddItems": body({"items": _items(minItems=1)}, required=["items"]),
        "CreateUser": body({"name": _user_name(), "role": words(ROLES)}, required=["name"]),
        "UpdateUser": body({"role": words(ROLES)}, required=["role"]),
        "UpdateQuota": body({name: _limit(name) for name in QUOTA_FIELDS}),
        "Empty": body({}),
    }


def decided(
    known: Iterable[str], used: Mapping[str, Json], neutral: Mapping[str, Neutral]
) -> dict[str, Json]:
    """Return the schema of each known field: that of `used`, or the neutral values."""
    schemas = dict(used) | {name: neutral_schema(one) for name, one in neutral.items()}
    different = schemas.keys() ^ set(known)
    if different:
        raise ValueError(
            f"validated and described fields must be the same (different: {different})"
        )
    return {name: schemas[name] for name in sorted(schemas)}


def neutral_schema(neutral: Neutral) -> Json:
    """Schema of the values that request nothing; in an object a null equals an absent field."""
    plain = [value for value in neutral.values if not isinstance(value, dict)]
    objects = [value for value in neutral.values if isinstance(value, dict)]
    options: list[Json] = [NULL]
    if plain:
        options.append({"enum": plain})
    if objects:
        needed = set.intersection(*(set(one) for one in objects))
        pairs = {
            key: {"enum": [value] if key in needed else [value, None]}
            for one in objects
            for key, value in one.items()
        }
        options.append(body(pairs, required=sorted(needed)))
    return {"anyOf": options, "description": f"Must be {neutral.allowed}."}


def _nullable(name: str) -> Json:
    return nullable(reference(name))


def _input_item(roles: Iterable[Role]) -> Json:
    pairs: dict[str, Json] = {name: {} for name in sorted(items.ITEM_KEYS)}
    pairs |= {
        "type": nullable(const("message")),
        "role": words(roles),
        "content": content(),
    }
    return body(pairs, required=["role", "content"])


def content() -> Json:
    """Schema of a message's content: a text or a list of text parts."""
    return {"anyOf": [STRING, array(reference("TextPart"), maxItems=items.MAX_PARTS)]}


def _text_part() -> Json:
    parts: dict[str, Json] = {name: {} for name in sorted(items.PART_KEYS)}
    parts |= {"type": words(items.TEXT_PARTS), "text": STRING}
    return body(parts, required=["type", "text"])


def _items(**bounds: int) -> Json:
    return array(reference("InputItem"), maxItems=items.MAX_ADDED, **bounds)


def _metadata() -> Json:
    return {
        "type": "object",
        "maxProperties": requests.MAX_METADATA,
        "propertyNames": {"maxLength": requests.MAX_METADATA_KEY},
        "additionalProperties": text(requests.MAX_METADATA_VALUE),
    }


def _turn_metadata() -> Json:
    deadline = digits_up_to(requests.MAX_DEADLINE_MS) | {"description": "Milliseconds."}
    return _metadata() | {"properties": {"priority": words(PRIORITIES), "deadline_ms": deadline}}


def _policy(choices: Mapping[str, Mapping[str, Any]]) -> Json:
    """One alternative per policy. The policies themselves validate the bounds of parameters."""
    return {
        "description": "A context policy: its type, its fidelity, and its parameters.",
        "anyOf": [_one_policy(name, choices[name]) for name in sorted(choices)],
    }


def _one_policy(name: str, parameters: Mapping[str, Any]) -> Json:
    properties = {
        "type": const(name),
        "fidelity": nullable(words(policies.FIDELITIES)),
        "oversize": nullable(words(policies.OVERSIZES)),
        "under_pressure": nullable(words(policies.UNDER_PRESSURE)),
        **{key: _policy_parameter(annotation) for key, annotation in parameters.items()},
    }
    return body(properties, required=["type"])


def _policy_parameter(annotation: Any) -> Json:
    schema = msgspec.json.schema(annotation)
    return nullable(schema) if schema else {"type": ["number", "string", "null"]}


def _create_response() -> Json:
    used = sampling() | {
        "model": nullable(text(requests.MAX_MODEL)),
        "input": {"anyOf": [NULL, STRING, array(reference("InputItem"), maxItems=items.MAX_ITEMS)]},
        "instructions": nullable(STRING),
        "conversation": _conversation(),
        "previous_response_id": nullable(text(requests.MAX_ID)),
        "generate": nullable(BOOLEAN),
        "max_output_tokens": nullable(integer(1, MAX_INT)),
        "truncation": nullable(words(requests.TRUNCATIONS)),
        "store": nullable(BOOLEAN),
        "background": nullable(BOOLEAN),
        "metadata": nullable(_turn_metadata()),
        "context_management": nullable(array(reference("Policy"), maxItems=1)),
        "include": nullable(array(words(requests.INCLUDABLE), maxItems=requests.MAX_INCLUDES)),
        "stream": nullable(BOOLEAN),
        "parallel_tool_calls": nullable(BOOLEAN),
        "max_tool_calls": nullable(integer(0, MAX_INT)),
    }
    used |= dict.fromkeys(LABELS, nullable(text(requests.MAX_LABEL)))
    schema = body(decided(requests.BODY_KEYS, used, requests.NEUTRAL))
    unstored = {"store": const(False), "background": const(True)}
    both = {"anyOf": [_both("conversation", "previous_response_id"), _all_of(unstored)]}
    return schema | {"not": both}


def sampling() -> dict[str, Json]:
    """Schemas of sampling parameters and stop conditions."""
    stop = text(requests.MAX_STOP_CHARS, 1)
    return {
        "temperature": nullable(number(0, 2)),
        "top_p": nullable(number(0, 1)),
        "top_k": nullable(integer(0, MAX_INT)),
        "min_p": nullable(number(0, 1)),
        "seed": nullable(integer(0, requests.MAX_SEED)),
        "stop": {"anyOf": [NULL, stop, array(stop, maxItems=requests.MAX_STOPS)]},
        "repetition_penalty": nullable(number(requests.MIN_REPETITION_PENALTY, 2)),
        "frequency_penalty": nullable(number(-2, 2)),
        "presence_penalty": nullable(number(-2, 2)),
        "logit_bias": nullable(_logit_bias()),
    }


def _logit_bias() -> Json:
    bias = nullable(number(-requests.MAX_BIAS, requests.MAX_BIAS))
    return {
        "type": "object",
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"},
        "additionalProperties": bias,
        "maxProperties": requests.MAX_BIASES,
    }


def _conversation() -> Json:
    name = text(requests.MAX_ID)
    return {"anyOf": [NULL, name, body({"id": name}, required=["id"])]}


def _all_of(properties: Mapping[str, Json]) -> Json:
    return {"required": list(properties), "properties": dict(properties)}


def _both(*names: str) -> Json:
    return _all_of({name: {"not": NULL} for name in names})


def _conversation_name() -> Json:
    pattern = f"^[A-Za-z0-9_.-]{{1,{MAX_NAME}}}$"
    return {"type": "string", "pattern": pattern, "not": {"pattern": f"^{OWN_ID_PREFIX}"}}


def _user_name() -> Json:
    reserved = f"^({RESERVED_NAME}$|{RESERVED_START})"
    return {"type": "string", "pattern": f"^{NAME_PATTERN}$", "not": {"pattern": reserved}}


def _limit(name: str) -> Json:
    if name == "weight":
        return nullable(number(quotas.MIN_WEIGHT, quotas.MAX_WEIGHT))
    if name == "max_priority":
        return nullable(words(PRIORITIES))
    return nullable(integer(0, quotas.MAX_LIMIT))
