"""A turn's request parameters as they are stored with the turn. Pure.

Input, instructions, session and previous response have columns of their own.
"""

from dataclasses import fields
from typing import Any

import msgspec

from sessiond.domain import PolicyChoice, TurnRequest

_ELSEWHERE = {"input", "instructions", "conversation", "previous_response_id"}
_STORED = [field.name for field in fields(TurnRequest) if field.name not in _ELSEWHERE]


def pack_request(request: TurnRequest) -> dict[str, Any]:
    """The request's parameters as JSON values."""
    packed: dict[str, Any] = msgspec.to_builtins({n: getattr(request, n) for n in _STORED})
    return packed


def unpack_request(packed: dict[str, Any]) -> TurnRequest:
    """The request without its input; fields that an older version did not store have defaults."""
    values: dict[str, Any] = {name: packed[name] for name in _STORED if name in packed}
    for name, value in values.items():
        values[name] = tuple(value) if isinstance(value, list) else value
    values["logit_bias"] = tuple((token, bias) for token, bias in values.get("logit_bias", ()))
    values["policy"] = unpack_policy(values.get("policy"))
    return TurnRequest(**values)


def pack_policy(choice: PolicyChoice | None) -> dict[str, Any] | None:
    """A context policy as a JSON value."""
    packed: dict[str, Any] | None = msgspec.to_builtins(choice)
    return packed


def unpack_policy(packed: dict[str, Any] | None) -> PolicyChoice | None:
    """The context policy from its JSON value."""
    return None if packed is None else msgspec.convert(packed, PolicyChoice)
