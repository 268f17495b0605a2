"""Loads settings; an error names the source, the setting, what it must be and its value."""

import difflib
import os
import tomllib
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from engine.errors import ConfigError
from engine.system.byte_size import BYTE_SIZES
from sessiond.settings import (
    CONFIG_FILE_VARIABLE,
    ENV_PREFIX,
    ByteSize,
    Settings,
    config_file,
    service_variables,
)

# Environment variables with the prefix that are not server settings.
OTHER_VARIABLES = frozenset(
    {CONFIG_FILE_VARIABLE, "SESSIOND_URL", "SESSIOND_API_KEY", "SESSIOND_SOAK", "SESSIOND_CPU_ISA"}
)


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a non-empty string",
    tuple[str, ...]: "comma-separated names",
}


BYTE_FIELDS = frozenset(n for n, kind in Settings.__annotations__.items() if kind == ByteSize)


class SettingError(Exception):
    """Invalid settings, one line each."""


def load_settings(flags: Mapping[str, object]) -> Settings:
    """Load settings from all sources; `flags` holds the given flags by field name.

    Raises:
        SettingError: names every invalid setting, its value and what it must be.
    """
    _refuse_unknown_variables()
    _need_named_file()
    try:
        return Settings(**flags)  # type: ignore[arg-type]  # values of flags are read by pydantic
    except ValidationError as error:
        lines = [_line(details, flags) for details in error.errors()]
        raise SettingError("\n".join(lines)) from error
    except ConfigError as error:
        where = _source(error.name, flags)
        raise SettingError(f"{where} must be {error.allowed} (got {error.value})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{config_file()} must be valid TOML ({error})") from error
    except OSError as error:
        raise SettingError(f"{config_file()} cannot be read: {error.strerror}") from error


def allowed_values(name: str) -> str:
    """The allowed values of a setting, in words."""
    field = Settings.model_fields[name]
    kind: Any = field.annotation
    if get_origin(kind) is Literal:
        *others, last = get_args(kind)
        return f"{', '.join(others)} or {last}" if others else str(last)
    if name == "otlp_traces_endpoint":
        return "a URL such as http://127.0.0.1:4318/v1/traces, or empty"
    if name == "db":
        return "a SQLAlchemy URL such as sqlite+aiosqlite:////path/to/file.db"
    words = BYTE_SIZES if name in BYTE_FIELDS else _KINDS[kind]
    return words + _bounds(field)


def _bounds(field: FieldInfo) -> str:
    least = next((rule.ge for rule in field.metadata if isinstance(rule, annotated_types.Ge)), None)
    above = next((rule.gt for rule in field.metadata if isinstance(rule, annotated_types.Gt)), None)
    most = next((rule.le for rule in field.metadata if isinstance(rule, annotated_types.Le)), None)
    match least, above, most:
        case None, None, None:
            return ""
        case None, _, None:
            return f" above {above}"
        case None, _, _:
            return f" above {above}, up to {most}"
        case _, _, None:
            return f", {least} or more"
        case _:
            return f" from {least} to {most}"


def _line(details: ErrorDetails, flags: Mapping[str, object]) -> str:
    name = str(details["loc"][0])
    where = _source(name, flags)
    if name not in Settings.model_fields:
        return f"{where}: there is no such setting; {_did_you_mean(name)}"
    value = _as_given(name, details["input"], flags)
    return f"{where} must be {allowed_values(name)} (got {value})"


def _as_given(name: str, value: object, flags: Mapping[str, object]) -> object:
    """The value as given: pydantic's error may show only a part of it."""
    return flags.get(name, _variables().get(f"{ENV_PREFIX}{name.upper()}", value))


def _source(name: str, flags: Mapping[str, object]) -> str:
    """The setting as named in the source that took precedence."""
    if name in flags:
        return f"--{name.replace('_', '-')}"
    variable = f"{ENV_PREFIX}{name.upper()}"
    if variable in _variables():
        return variable
    return f"{config_file()}: {name}" if name in _file_names() else name


def _file_names() -> frozenset[str]:
    try:
        with config_file().open("rb") as file:
            return frozenset(tomllib.load(file))
    except OSError:
        return frozenset()


def _variables() -> dict[str, str]:
    """The environment without the variables that Kubernetes sets for a Service."""
    passed_over = service_variables(os.environ)
    return {name: value for name, value in os.environ.items() if name not in passed_over}


def _refuse_unknown_variables() -> None:
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES
    given = [name for name in _variables() if name.upper().startswith(ENV_PREFIX)]
    unknown = [name for name in given if name.upper() not in known]
    if unknown:
        lines = [
            f"{name}={os.environ[name]}: there is no such setting; "
            f"{_did_you_mean(name[len(ENV_PREFIX) :].lower())}"
            for name in sorted(unknown)
        ]
        raise SettingError("\n".join(lines))


def _need_named_file() -> None:
    """The file in the working folder is optional; an explicitly named one is required."""
    if os.environ.get(CONFIG_FILE_VARIABLE) and not config_file().is_file():
        raise SettingError(
            f"{CONFIG_FILE_VARIABLE} must be a TOML file that exists (got {config_file()})"
        )


def _did_you_mean(name: str) -> str:
    names = sorted(Settings.model_fields)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"the settings are {', '.join(names)}"
