"""Ends a command after an error. Exit codes: 0 success, 1 failure, 2 wrong usage."""

from typing import NoReturn

import typer

from sessiond.api_keys import without_keys

FAILED = 1
WRONG_USAGE = 2


def fail(reason: object, code: int = FAILED) -> NoReturn:
    """Print the reason to standard error and end the command.

    Raises:
        typer.Exit: always.
    """
    typer.echo(without_keys(f"sessiond: {reason}"), err=True)
    raise typer.Exit(code)
