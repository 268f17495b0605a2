"""Quotas as JSON objects, for admins. null is no limit; an absent field is unchanged."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sessiond.api.protocol import fields
from sessiond.api.protocol.resources import Json
from sessiond.quota import PRIORITIES, QUOTA_FIELDS, Account

MAX_LIMIT = 2**53 - 1  # the largest integer that every JSON parser reads exactly
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
_KNOWN = frozenset(QUOTA_FIELDS)


def decode_limits(pairs: Mapping[str, object]) -> dict[str, Any]:
    """Read the limits to change.

    Raises:
        RequestError: names the field, its value and the allowed values.
    """
    fields.only_known(pairs, _KNOWN)
    return {name: _limit(name, value) for name, value in pairs.items()}


def quota_object(user_id: str, account: Account) -> Json:
    """Build a user's limits and usage."""
    return {
        "user": user_id,
        **msgspec.to_builtins(account.quota),
        "usage": usage_object(account),
    }


def usage_object(account: Account) -> Json:
    """Build a user's usage; tokens of the current minute and day include reserved ones."""
    use = account.use
    return {
        "sessions": use.sessions,
        "concurrent_turns": use.turns,
        "tokens_this_minute": use.minute_tokens,
        "tokens_today": use.day_tokens,
        "tokens_total": use.total_tokens,
        "byte_seconds": round(use.byte_seconds),
    }


def _limit(name: str, value: object) -> int | float | str | None:
    if name == "weight":
        return fields.number(name, value, 1.0, MIN_WEIGHT, MAX_WEIGHT)
    if value is None:
        return None
    if name == "max_priority":
        return fields.one_of(name, value, PRIORITIES)
    return fields.integer(name, value, 0, MAX_LIMIT)
