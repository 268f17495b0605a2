"""Pictures need matplotlib, which is an extra: who lacks it hears of that before the work."""

import importlib.util

from sessiond.cli.fail import fail


def need_plots(what: str) -> None:
    """Return where matplotlib is installed.

    Raises:
        typer.Exit: it is not; `what` needs the extra.
    """
    if importlib.util.find_spec("matplotlib") is None:
        fail(f"{what} needs the extra: pip install 'sessiond[plots]'")
