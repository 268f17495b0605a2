"""`sessiond simulate`: compares placement policies on a trace, and plots the hit ratios."""

import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from engine.simulation.hints import Hints
from engine.simulation.outcome import Outcome, compare, replay_only
from engine.simulation.synthetic import SyntheticSessions
from engine.simulation.trace import MOONCAKE_BLOCK_TOKENS, Trace, TraceError, read_trace
from engine.system.byte_size import format_bytes
from policies.registry import UnknownPlacementPolicyError
from sessiond.cli.fail import WRONG_USAGE, fail
from sessiond.cli.plots_extra import need_plots

_POLICIES = ("lru", "cost_aware")
_CAPACITIES = (1_000, 5_000, 10_000, 30_000, 50_000)


def write_plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Plot all outcomes of one trace. Oracles are dashed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for policy in dict.fromkeys(outcome.policy for outcome in outcomes):
        line = sorted((o for o in outcomes if o.policy == policy), key=lambda o: o.capacity)
        oracle = line[0].oracle
        axes.plot(
            [outcome.capacity for outcome in line],
            [outcome.hit_ratio for outcome in line],
            marker="o",
            linestyle="--" if oracle else "-",
            label=f"{policy} (oracle)" if oracle else policy,
        )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("blocks of the pool")
    axes.set_ylabel("hit ratio")
    axes.set_title(outcomes[0].trace)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, format="png", dpi=120)


def simulate(  # noqa: PLR0913, PLR0917 -- the command's options
    trace: Annotated[
        Path | None,
        typer.Argument(help="Trace: a .jsonl (docs/traces.md) or a .csv of BurstGPT, or its .gz."),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Placement policy; may be repeated.")
    ] = None,
    capacity: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Size of the pool in blocks; may be repeated."),
    ] = None,
    hints: Annotated[
        Hints | None,
        typer.Option(
            help="Hints of clients that a session has ended, taken from the rest of the trace."
        ),
    ] = None,
    synthetic_sessions: Annotated[
        int, typer.Option(min=0, help="Number of sessions to generate instead of reading a trace.")
    ] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="PNG file for the hit ratios. Needs the extra `plots`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Replay a trace through the real pool and policies, with FIFO and Belady for comparison."""
    _check(trace, synthetic_sessions, hints)
    if plot is not None:
        need_plots("--plot")
    started_s = time.monotonic()
    try:
        outcomes = list(
            _outcomes(
                trace, policy or _POLICIES, capacity or _CAPACITIES, hints, synthetic_sessions
            )
        )
    except (TraceError, UnknownPlacementPolicyError) as error:
        fail(str(error), WRONG_USAGE)
    if plot is not None:
        write_plot(outcomes, plot)
    if as_json:
        typer.echo(msgspec.json.encode(outcomes).decode())
    else:
        _show(outcomes, time.monotonic() - started_s)


def _check(trace: Path | None, synthetic: int, hints: Hints | None) -> None:
    if (trace is None) == (synthetic == 0):
        fail("exactly one of a trace and --synthetic-sessions must be given", WRONG_USAGE)
    if hints and trace is None:
        fail("--hints needs a trace: generated sessions have no known future", WRONG_USAGE)


def _outcomes(
    path: Path | None,
    policies: Sequence[str],
    capacities: Sequence[int],
    hints: Hints | None,
    synthetic: int,
) -> Iterator[Outcome]:
    if path is not None:
        return compare(read_trace(path), policies, capacities, hints)
    drawn = Trace(
        name="synthetic",
        block_tokens=MOONCAKE_BLOCK_TOKENS,
        requests=SyntheticSessions(count=synthetic),
    )
    return replay_only(drawn, policies, capacities)


def _show(outcomes: Sequence[Outcome], seconds: float) -> None:
    first = outcomes[0]
    table = Table(title=f"{first.trace}: {first.requests:,} requests, {first.lookups:,} look-ups")
    for name in ("capacity", "policy", "hit ratio", "moved back", "evictions", "sessions at once"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for at, outcome in enumerate(outcomes):
        ends = at + 1 == len(outcomes) or outcomes[at + 1].capacity != outcome.capacity
        table.add_row(
            f"{outcome.capacity:,}",
            label(outcome),
            f"{outcome.hit_ratio:.4f}",
            "" if outcome.bytes_moved is None else format_bytes(outcome.bytes_moved),
            "" if outcome.evictions is None else f"{outcome.evictions:,}",
            "" if outcome.most_sessions is None else f"{outcome.most_sessions:,}",
            end_section=ends,
        )
    console = Console(highlight=False)
    console.print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    console.print(f"{seconds:.1f} s, at most {format_bytes(peak)} of memory")


def label(outcome: Outcome) -> str:
    """Return the policy's name, marked if it knows the future."""
    if outcome.hints:
        return f"{outcome.policy}, {outcome.hints} hints (oracle)"
    return f"{outcome.policy} (oracle)" if outcome.oracle else outcome.policy
