"""Typed access to a model file's fields. Errors name file, field, value and the allowed values."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError

MAX_SIZE = 2**24
MAX_FEW = 2**12  # layers, heads, values of a head: each becomes a list somewhere
_MAX_NUMBER = 1e30
_MAX_CONFIG_BYTES = 16 * 2**20
_ABSENT: Any = object()
_MAX_SHOWN = 200


class Fields:
    """Values by name, from one file. A None value counts as absent, as in config.json."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix

    def under(self, prefix: str) -> "Fields":
        """Return the same values, with names `prefix.name` (as in GGUF)."""
        return Fields(self.path, self._values, f"{prefix}.")

    def section(self, name: str) -> "Fields | None":
        """Return the object of a name; None when absent.

        Raises:
            ModelFileError: it is not an object.
        """
        value = self._get(name, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, value, "an object")
        return Fields(self.path, value)

    def has(self, name: str) -> bool:
        """Whether a field has a value."""
        return self._values.get(self._prefix + name) is not None

    def wrong(self, name: str, value: object, allowed: str) -> ModelFileError:
        """Build the error for an invalid value."""
        return ModelFileError(
            f"{self.path}: {self._prefix}{name} must be {allowed} (got {repr(value)[:_MAX_SHOWN]})"
        )

    def size(self, name: str, default: int = _ABSENT, *, most: int = MAX_SIZE) -> int:
        """Return a whole number from 1 to `most`."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.wrong(name, value, f"a whole number of 1 or more, up to {most}")
        return value

    def count(self, name: str, default: int) -> int:
        """Return a whole number from 0 to `MAX_SIZE`."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SIZE:
            raise self.wrong(name, value, f"a whole number of 0 or more, up to {MAX_SIZE}")
        return value

    def counts(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers from 0; empty when absent."""
        value = self._get(name, [])
        if not isinstance(value, list) or any(type(each) is not int or each < 0 for each in value):
            raise self.wrong(name, value, "a list of whole numbers of 0 or more")
        return tuple(value)

    def optional_size(self, name: str) -> int | None:
        """Return a whole number of 1 or more; None when absent or 0."""
        return self.count(name, 0) or None

    def number(self, name: str, default: float = _ABSENT) -> float:
        """Return a number above 0, up to a plausible maximum."""
        value = self._get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= _MAX_NUMBER:
            raise self.wrong(name, value, f"a number above 0, up to {_MAX_NUMBER:g}")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def word(self, name: str, default: str) -> str:
        """Return a text."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def one_of(self, name: str, allowed: Sequence[str], default: str = _ABSENT) -> str:
        """Return a text that is one of the allowed ones."""
        value = self._get(name, default)
        if value not in allowed:
            raise self.wrong(name, value, " or ".join(allowed))
        return str(value)

    def only(self, name: str, allowed: Sequence[str]) -> str:
        """Return the only text of a list of one."""
        value = self._get(name)
        if not isinstance(value, list) or len(value) != 1 or value[0] not in allowed:
            raise self.wrong(name, value, f"a list with one of {', '.join(allowed)}")
        return str(value[0])

    def list_of(self, name: str, allowed: Sequence[str]) -> list[str] | None:
        """Return a list of allowed texts; None when absent."""
        value = self._get(name, None)
        if value is None:
            return None
        if not isinstance(value, list) or any(word not in allowed for word in value):
            raise self.wrong(name, value, f"a list of {' or '.join(allowed)}")
        return value

    def require(self, name: str, expected: object, *, default: object) -> None:
        """Check that a field has the only supported value."""
        value = self._get(name, default)
        if value != expected:
            raise self.wrong(name, value, repr(expected))

    def _get(self, name: str, default: Any = _ABSENT) -> Any:
        value = self._values.get(self._prefix + name)
        if value is not None:
            return value
        if default is _ABSENT:
            raise ModelFileError(f"{self.path}: field {self._prefix + name!r} is missing")
        return default


def read_object(path: Path, *, most_bytes: int) -> dict[str, Any]:
    """Read a file that holds a JSON object.

    Raises:
        ModelFileError: missing, unreadable, too large, or not a JSON object.
    """
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise ModelFileError(f"{path}: file must be at most {most_bytes} bytes (got {size})")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not valid JSON ({str(error)[:200]})") from error
    if not isinstance(values, dict):
        raise ModelFileError(f"{path}: content must be a JSON object")
    return values


def read_config_json(path: Path) -> Fields:
    """Read a folder's config.json.

    Raises:
        ModelFileError: missing, unreadable, or not a JSON object.
    """
    return Fields(path, read_object(path, most_bytes=_MAX_CONFIG_BYTES))
