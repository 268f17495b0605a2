"""Column types for what clients write: any text, also what Postgres has no character for. Pure."""

from typing import Any

import sqlalchemy as sa

# Postgres stores every character but NUL. So it is written as a rare one and a digit, and that
# one, where it occurs, as itself and another.
_NUL, _ESCAPE = "\0", "\x1a"
_ESCAPED = ((_ESCAPE, _ESCAPE + "1"), (_NUL, _ESCAPE + "0"))


def escaped(text: str) -> str:
    """The text without NUL."""
    for plain, written in _ESCAPED:
        text = text.replace(plain, written)
    return text


def unescaped(text: str) -> str:
    """What was escaped."""
    for plain, written in reversed(_ESCAPED):
        text = text.replace(written, plain)
    return text


class _AnyText(sa.TypeDecorator[str]):
    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or dialect.name != "postgresql":
            return value
        return escaped(value)

    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> str | None:
        if value is None or dialect.name != "postgresql":
            return value
        return unescaped(value)


class AnyText(_AnyText):
    """Text of any length."""

    impl = sa.Text
    cache_ok = True


class Id(_AnyText):
    """An id: ours are plain, but clients may ask for any."""

    impl = sa.String(64)
    cache_ok = True
