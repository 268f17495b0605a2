"""Derives a command's flags from the settings, so that both have the same names."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from engine.system.byte_size import format_bytes
from sessiond.cli.fail import WRONG_USAGE, fail
from sessiond.setting_errors import BYTE_FIELDS, SettingError, load_settings
from sessiond.settings import Settings

_METAVARS = {int: "NUMBER", float: "NUMBER", str: "TEXT", tuple[str, ...]: "NAME,..."}


def with_setting_flags(
    run: Callable[..., None], names: Collection[str] | None = None
) -> Callable[..., None]:
    """Make a command with one flag per setting, which calls `run` with the resulting settings.

    Only the settings in `names` become flags (None: all). Further parameters of `run`, after the
    settings, become the command's own flags. The settings alone parse the values, so flags,
    variables and the file share rules and messages. Invalid values cause exit code 2.
    """

    @functools.wraps(run)
    def command(**flags: Any) -> None:
        others = {name: flags.pop(name) for name in own}
        given = {name: value for name, value in flags.items() if value is not None}
        try:
            settings = load_settings(given)
        except SettingError as error:
            fail(f"{error}\nSee `sessiond serve --help`.", WRONG_USAGE)
        run(settings, **others)

    _, *rest = inspect.signature(run).parameters.values()
    own = [each.name for each in rest]
    fields = Settings.model_fields.items()
    parameters = [
        _parameter(name, field) for name, field in fields if names is None or name in names
    ]
    parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in rest]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    return command


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    flag = name.replace("_", "-")
    is_switch = field.annotation is bool
    option = typer.Option(
        f"--{flag}/--no-{flag}" if is_switch else f"--{flag}",
        help=f"{field.description} (default: {default_text(name, field)})",
        metavar=None if is_switch else _metavar(name, field),
        show_default=False,
    )
    kind: Any = bool | None if is_switch else str | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _metavar(name: str, field: FieldInfo) -> str:
    if name in BYTE_FIELDS:
        return "SIZE"
    kind: Any = field.annotation
    choices: tuple[str, ...] = getattr(kind, "__args__", ())
    return _METAVARS.get(kind) or "|".join(choices)


def default_text(name: str, field: FieldInfo) -> str:
    """Format a setting's default as it would be written."""
    default = field.get_default(call_default_factory=True, validated_data={})
    match default:
        case bool():
            return "on" if default else "off"
        case ():
            return "none"
        case int() if name in BYTE_FIELDS and default:
            return format_bytes(default)
        case float():
            return f"{default:g}"
        case _:
            return str(default)
