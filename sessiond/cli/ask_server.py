"""What the commands that ask a running server share: its address, its refusals, `--json`."""

import contextlib
import json
import re
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any

import typer

from sessiond.cli.server_api import ServerAddress, ServerApi, ServerError
from sessiond.settings import Settings

_HOST, _PORT = (Settings.model_fields[name].default for name in ("host", "port"))
DEFAULT_URL = f"http://{_HOST}:{_PORT}"
_KEY = re.compile(r"[!-~]*")

UrlOption = Annotated[
    str, typer.Option("--url", envvar="SESSIOND_URL", help="Where the server is.")
]


def _sendable(key: str | None) -> str | None:
    """Refuse what no header can carry, without showing it."""
    if key is not None and not _KEY.fullmatch(key):
        raise typer.BadParameter("allowed is sk-ID.SECRET, without spaces or letters beyond ASCII")
    return key


KeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        callback=_sendable,
        envvar="SESSIOND_API_KEY",
        show_envvar=True,
        help="Key of a server that asks for one; others see flags, so better say it by variable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@contextlib.contextmanager
def server_at(url: str, api_key: str | None = None) -> Iterator[ServerApi]:
    """The server at a URL; what it refuses ends the command with exit code 1, in words."""
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
    """What may help."""
    if error.status == HTTPStatus.UNAUTHORIZED:
        return ". Say a key with --api-key or SESSIOND_API_KEY; `sessiond user` makes them."
    if isinstance(error.__cause__, ssl.SSLError) or isinstance(
        getattr(error.__cause__, "reason", None), ssl.SSLError
    ):
        return ". `sessiond serve` speaks plain http://, a proxy before it https://."
    return "" if error.status else ". Is it running? `sessiond serve` starts one."


def print_json(value: Any) -> None:
    """Print a value for scripts."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
