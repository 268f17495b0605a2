"""Shared parts of commands that query a running server: address, errors, `--json`."""

import contextlib
import json
import re
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any

import typer

from sessiond.cli.fail import fail
from sessiond.cli.server_api import ServerAddress, ServerApi, ServerError
from sessiond.settings import Settings

_HOST, _PORT = (Settings.model_fields[name].default for name in ("host", "port"))
DEFAULT_URL = f"http://{_HOST}:{_PORT}"
_KEY = re.compile(r"[!-~]*")


def not_utf8(what: str, byte: int, where: str = "") -> str:
    """Return the words for a byte that is not UTF-8."""
    return (
        f"{what} must be UTF-8 (got byte 0x{byte:02x}{where}); `iconv -f LATIN1 -t UTF-8` converts "
        "text of an older encoding"
    )


def utf8(parameter: typer.CallbackParam, text: str | None) -> str | None:
    """Refuse a text that is not UTF-8: Python passes its other bytes as lone surrogates."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        fail(not_utf8(parameter.opts[0], ord(error.object[error.start]) & 0xFF))
    return text


def _sendable(key: str | None) -> str | None:
    """Refuse a key that no header can carry, without printing it."""
    if key is not None and not _KEY.fullmatch(key):
        raise typer.BadParameter("the key must be sk-ID.SECRET in ASCII, without spaces")
    return key


UrlOption = Annotated[
    str,
    typer.Option("--url", callback=utf8, envvar="SESSIOND_URL", help="URL of the server."),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        callback=_sendable,
        envvar="SESSIOND_API_KEY",
        show_envvar=True,
        help="API key. Other users of the machine can see flags, so prefer the variable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@contextlib.contextmanager
def server_at(url: str, api_key: str | None = None) -> Iterator[ServerApi]:
    """Yield the server at a URL; an error of the server ends the command with exit code 1."""
    try:
        address = ServerAddress.parse(url, api_key)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from error
    try:
        yield ServerApi(address)
    except ServerError as error:
        hint = hint_for(error)
        typer.echo(f"sessiond: {error}{hint}", err=True)
        raise typer.Exit(1) from error


def hint_for(error: ServerError) -> str:
    """Return a hint on how to fix the error."""
    if error.status == HTTPStatus.UNAUTHORIZED:
        return ". Set a key with --api-key or SESSIOND_API_KEY; `sessiond user` creates keys."
    if isinstance(error.__cause__, ssl.SSLError) or isinstance(
        getattr(error.__cause__, "reason", None), ssl.SSLError
    ):
        return ". `sessiond serve` serves plain http://; https:// needs a proxy in front of it."
    return "" if error.status else ". Is it running? `sessiond serve` starts one."


def print_json(value: Any) -> None:
    """Print a value for scripts."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
