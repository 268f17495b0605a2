"""Validates single fields. Every error names the field, its value and the allowed values."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from sessiond.errors import RequestError

MAX_SHOWN = 80
MAX_INT = 2**31 - 1

Choice = TypeVar("Choice", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neutral:
    """A standard field of which this server accepts only the values that request nothing."""

    values: tuple[object, ...]
    allowed: str


def shown(value: object) -> str:
    """Format a value for a message: JSON, plain ASCII, cut to `MAX_SHOWN` characters."""
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def refuse(name: str, value: object, allowed: str) -> NoReturn:
    """Refuse an invalid value.

    Raises:
        RequestError: always, `invalid_value`.
    """
    name = _plain(name)
    message = f"{name} must be {allowed} (got {shown(value)})"
    raise RequestError("invalid_value", message, param=name)


def unsupported(name: str, value: object, allowed: str) -> NoReturn:
    """Refuse a value that is valid in the standard but not supported here.

    Raises:
        RequestError: always, `unsupported_parameter`.
    """
    name = _plain(name)
    message = f"{name} must be {allowed} (got {shown(value)}, which is not supported)"
    raise RequestError("unsupported_parameter", message, param=name)


def only_neutral(pairs: Mapping[str, object], table: Mapping[str, Neutral]) -> None:
    """Check each present field of the table. JSON equality: `false` is not 0.

    A null equals an absent field, also one level down.
    """
    for name, neutral in table.items():
        value = pairs.get(name)
        if value is None:
            continue
        if isinstance(value, dict):
            value = {key: inner for key, inner in value.items() if inner is not None}
        if not any(type(value) is type(one) and value == one for one in neutral.values):
            unsupported(name, pairs[name], neutral.allowed)


def only_known(pairs: Mapping[str, object], known: frozenset[str], where: str = "") -> None:
    """Refuse unknown keys: a client would expect an ignored one to have an effect."""
    for name in pairs:
        if name not in known:
            path = f"{where}{name[:64]}"
            unsupported(path, pairs[name], f"absent; known fields are {', '.join(sorted(known))}")


def text(name: str, value: object, *, longest: int | None = None) -> str:
    """Read a string of at most `longest` characters."""
    if not isinstance(value, str) or (longest is not None and len(value) > longest):
        limit = "" if longest is None else f" of up to {longest} characters"
        refuse(name, value, f"a string{limit}")
    return value


def optional_text(name: str, value: object, *, longest: int | None = None) -> str | None:
    """Read a string or null."""
    return None if value is None else text(name, value, longest=longest)


def boolean(name: str, value: object, default: bool) -> bool:
    """Read a boolean; null is the default."""
    if value is None:
        return default
    if not isinstance(value, bool):
        refuse(name, value, "true or false")
    return value


def integer(name: str, value: object, lowest: int, highest: int = MAX_INT) -> int:
    """Read an integer in a range, ends included. JSON does not distinguish 1.0 from 1."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        refuse(name, value, f"an integer from {lowest} to {highest}")
    return value


def number(name: str, value: object, default: float, lowest: float, highest: float) -> float:
    """Read a number in a range, ends included; null is the default."""
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(name, value, f"a number from {lowest:g} to {highest:g}")
    if not lowest <= value <= highest:
        refuse(name, value, f"a number from {lowest:g} to {highest:g}")
    return float(value)


def one_of(name: str, value: object, choices: Sequence[Choice]) -> Choice:
    """Read one of some words."""
    for choice in choices:
        if value == choice:
            return choice
    refuse(name, value, either(choices))


def mapping(name: str, value: object) -> dict[str, object]:
    """Read a JSON object."""
    if not isinstance(value, dict):
        refuse(name, value, "an object")
    return value


def sequence(name: str, value: object, *, most: int | None = None) -> list[object]:
    """Read a JSON array of at most `most` entries."""
    if not isinstance(value, list):
        refuse(name, value, "an array")
    if most is not None and len(value) > most:
        refuse(name, f"{len(value)} entries", f"an array of up to {most} entries")
    return value


def _plain(name: str) -> str:
    """Escape a name to one line of ASCII: the sender chose it, and logs and terminals show it."""
    return name if name.isascii() and name.isprintable() else json.dumps(name)[1:-1]


def either(words: Sequence[str]) -> str:
    """Format alternatives for a message: `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
