"""What the commands that ask a running server share: its address, its refusals, `--json`."""

import contextlib
import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from sessiond.cli.server_api import ServerAddress, ServerApi, ServerError
from sessiond.settings import Settings

_HOST, _PORT = (Settings.model_fields[name].default for name in ("host", "port"))
DEFAULT_URL = f"http://{_HOST}:{_PORT}"

UrlOption = Annotated[
    str, typer.Option("--url", envvar="SESSIOND_URL", help="Where the server is.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@contextlib.contextmanager
def server_at(url: str) -> Iterator[ServerApi]:
    """The server at a URL; what it refuses ends the command with exit code 1, in words."""
    try:
        address = ServerAddress.parse(url)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from error
    try:
        yield ServerApi(address)
    except ServerError as error:
        hint = "" if error.status else ". Is it running? `sessiond serve` starts one."
        typer.echo(f"sessiond: {error}{hint}", err=True)
        raise typer.Exit(1) from error


def print_json(value: Any) -> None:
    """Print a value for scripts."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
