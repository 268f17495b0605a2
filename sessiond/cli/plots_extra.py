"""Checks for matplotlib, which is the extra `plots`, before a long command starts."""

import importlib.util

from sessiond.cli.fail import fail


def need_plots(what: str) -> None:
    """Check that matplotlib is installed. `what`: the command or flag that needs it.

    Raises:
        typer.Exit: it is not.
    """
    if importlib.util.find_spec("matplotlib") is None:
        fail(f"{what} needs the extra `plots`: pip install 'sessiond[plots]'")
