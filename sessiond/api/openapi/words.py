"""Helpers that build JSON schemas (draft 2020-12)."""

from collections.abc import Iterable, Mapping

from sessiond.api.protocol.resources import Json

STRING: Json = {"type": "string"}
BOOLEAN: Json = {"type": "boolean"}
COUNT: Json = {"type": "integer", "minimum": 0}
NUMBER: Json = {"type": "number"}
NULL: Json = {"type": "null"}
UNIX_TIME: Json = {"type": "integer", "description": "Unix time in seconds."}


def reference(name: str) -> Json:
    """Refer to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def const(value: object) -> Json:
    """One value."""
    return {"const": value}


def words(choices: Iterable[str]) -> Json:
    """One of some words."""
    return {"type": "string", "enum": list(choices)}


def text(longest: int, shortest: int = 0) -> Json:
    """A string with bounds on its length in characters."""
    return {"type": "string", "minLength": shortest, "maxLength": longest}


def integer(lowest: int, highest: int) -> Json:
    """An integer in a range, ends included."""
    return {"type": "integer", "minimum": lowest, "maximum": highest}


def number(lowest: float, highest: float) -> Json:
    """A number in a range, ends included."""
    return {"type": "number", "minimum": lowest, "maximum": highest}


def digits_up_to(highest: int) -> Json:
    """A decimal string of a number from 1 to `highest`, with at most as many digits."""
    digits = str(highest)
    shorter = [f"[1-9][0-9]{{0,{len(digits) - 2}}}"] if len(digits) > 1 else []
    lower = [
        f"{digits[:at]}[{int(at == 0)}-{int(digit) - 1}][0-9]{{{len(digits) - at - 1}}}"
        for at, digit in enumerate(digits)
        if int(digit) > int(at == 0)
    ]
    pattern = f"^0*({'|'.join([*shorter, *lower, digits])})$"
    return {"type": "string", "pattern": pattern, "maxLength": len(digits)}


def array(items: Json, **bounds: int) -> Json:
    """An array."""
    return {"type": "array", "items": items, **bounds}


def nullable(schema: Json) -> Json:
    """The schema, or null."""
    return {"anyOf": [schema, NULL]}


def answer(properties: Mapping[str, Json], *, sometimes: Mapping[str, Json] | None = None) -> Json:
    """An object in a response: `properties` are required, those of `sometimes` optional."""
    return {
        "type": "object",
        "properties": dict(properties) | dict(sometimes or {}),
        "required": list(properties),
    }


def body(properties: Mapping[str, Json], *, required: Iterable[str] = ()) -> Json:
    """An object in a request: no other properties are accepted."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
