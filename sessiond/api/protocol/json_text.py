"""Parses JSON text to plain values and refuses text that other parsers would read differently.

The standard library's parser is used because only it exposes duplicate keys. Types are checked
field by field in `fields`, whose messages name the value.
"""

import json
import math
import re
from collections import Counter
from typing import NoReturn

from sessiond.errors import RequestError

MAX_DIGITS = 20
MAX_DEPTH = 32
# `\ud800` and similar escapes are lone surrogates: legal in JSON, impossible in UTF-8.
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_object(text: str | bytes) -> dict[str, object]:
    """Parse one JSON object.

    Raises:
        RequestError: `invalid_json` for anything else, for duplicate keys, numbers outside 64 bits,
            NaN and infinities, lone surrogates, bytes that are not UTF-8, too deep nesting.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(
            text,
            object_pairs_hook=_no_duplicates,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise RequestError(
            "invalid_json", f"the text is not UTF-8: {error.reason} at {error.start}"
        ) from None
    except json.JSONDecodeError as error:
        raise RequestError("invalid_json", f"the text is not JSON: {error}") from None
    except RecursionError:
        raise RequestError("invalid_json", "the text must be nested less deeply") from None
    if not isinstance(value, dict):
        raise RequestError(
            "invalid_json", f"the text must be a JSON object (got {json_type(value)})"
        )
    if text.count("[") + text.count("{") > MAX_DEPTH or _SURROGATE_ESCAPE.search(text):
        _walk(value)
    return value


def json_type(value: object) -> str:
    """Name the JSON type of a parsed value, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise RequestError("invalid_json", f"key {twice[:64]!a} occurs twice in one object")
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        message = f"integers must fit in 64 bits (got one of {len(digits)} digits)"
        raise RequestError("invalid_json", message)
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise RequestError("invalid_json", f"numbers must fit in 64 bits (got {digits[:64]})")
    return value


def _constant(name: str) -> NoReturn:
    raise RequestError("invalid_json", f"{name} is not JSON")


def _walk(value: object) -> None:
    """Refuse lone surrogates and deep nesting. No recursion: the sender chooses the depth."""
    waiting = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise RequestError("invalid_json", f"the text must be nested at most {MAX_DEPTH} deep")
        match one:
            case str() as text:
                if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
                    raise RequestError("invalid_json", "strings must not contain a lone surrogate")
            case dict() as pairs:
                waiting.extend((key, depth) for key in pairs)
                waiting.extend((inner, depth + 1) for inner in pairs.values())
            case list() as values:
                waiting.extend((inner, depth + 1) for inner in values)
            case _:
                pass
