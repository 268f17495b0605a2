"""Soak curves as a picture: `python -m tests.soaks docs/soak.png`. Says the slopes, too."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sessiond.store import migrate
from tests.soaks.curve import Curve
from tests.soaks.real import soak_server
from tests.soaks.runs import soak_engine, soak_stack

MIB = 2**20
ROWS = (
    ("memory above the first sample, MiB", lambda curve, one: _above(curve, one) / MIB),
    ("open files", lambda _, one: one.files),
    ("tasks", lambda _, one: one.tasks),
    ("blocks in use at rest", lambda _, one: one.active_blocks),
    ("host tier, KiB", lambda _, one: one.host_bytes / 1024),
)


def main(
    picture: Annotated[Path, typer.Argument(help="Where the PNG goes.")],
    engine_turns: Annotated[int, typer.Option(help="On the engine; 0: none.")] = 50_000,
    stack_turns: Annotated[int, typer.Option(help="On the whole stack; 0: none.")] = 50_000,
    real_turns: Annotated[int, typer.Option(help="On the default model; 0: none.")] = 500,
    seed: int = 1,
) -> None:
    """Run the soaks one after the other, print their slopes, draw their curves."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite+aiosqlite:///{Path(folder) / 'soak.db'}"
        migrate.upgrade(url)
        curves = []
        if engine_turns:
            curves.append(asyncio.run(soak_engine(engine_turns, seed)))
        if stack_turns:
            curves.append(asyncio.run(soak_stack(url, stack_turns, seed))[0])
        if real_turns:
            server = asyncio.run(soak_server(Path(folder) / "server", real_turns, seed))
            curves += server[:2]
    for curve in curves:
        typer.echo(str(curve).partition("\n  Sample")[0])
    draw(curves).savefig(picture, dpi=110)


def draw(curves: list[Curve]) -> Figure:
    """One column per soak, one row per quantity."""
    figure = Figure(figsize=(4.2 * len(curves), 2.1 * len(ROWS)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("Clients that leave at random: what a process holds at rest, by turns run")
    axes = figure.subplots(len(ROWS), len(curves), squeeze=False)
    for column, curve in enumerate(curves):
        turns = [one.turns for one in curve.samples]
        for row, (title, value) in enumerate(ROWS):
            axis = axes[row][column]
            values = [value(curve, one) for one in curve.samples]
            axis.plot(turns, values, color="#0b7a4b", linewidth=1.6)
            axis.axvspan(0, curve.settled[0].turns, color="#eee")
            axis.set_ylim(bottom=min(0, *values), top=max(1, *values) * 1.15)
            axis.grid(alpha=0.3)
            if column == 0:
                axis.set_ylabel(title.replace(", ", ",\n"), fontsize=8)
        slope = curve.slope("rss_bytes") / 1024
        axes[0][column].set_title(f"{curve.name}\n{slope:+.2f} KiB per 100 turns", fontsize=9)
        axes[-1][column].set_xlabel("turns (grey: warm-up)", fontsize=8)
    return figure


def _above(curve, one):
    return one.rss_bytes - curve.samples[0].rss_bytes


if __name__ == "__main__":
    typer.run(main)
