"""Shows results as tables and writes them as JSON."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contest import Run
from benchmarks.decode import DecodeRow
from benchmarks.machine import describe_machine
from benchmarks.schedule import OURS
from benchmarks.summary import Cell, summarise
from benchmarks.ttft import TtftRow

_TITLES = {
    "tok_s": "tokens/s",
    "ttft_first_ms": "TTFT first turn, ms",
    "ttft_later_ms": "TTFT later turns, ms",
    "ttft_p95_ms": "TTFT p95, ms",
    "itl_ms": "between tokens, ms",
    "worst_gap_ms": "worst gap, ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All that a run of the benchmarks has found out."""

    runs: Sequence[Run] = ()
    ttft: Sequence[TtftRow] = ()
    decode: Sequence[DecodeRow] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)


def show(results: Results) -> None:
    """Print the tables."""
    console = Console()
    console.print(describe_machine())
    cells = summarise(results.runs)
    for workload in dict.fromkeys(cell.workload for cell in cells):
        console.print(_workload_table(workload, [c for c in cells if c.workload == workload]))
    if any(run.memory_mb for run in results.runs):
        console.print(_memory_table(results.runs))
    if results.ttft:
        console.print(_ttft_table(results.ttft))
    if results.decode:
        console.print(_decode_table(results.decode))
    for run in results.runs:
        if run.fault:
            console.print(f"failed: {run.play}: {run.fault}", markup=False)
    for name, reason in results.skipped.items():
        console.print(f"skipped: {name}: {reason}", markup=False)


def store(path: Path, command: str, results: Results) -> None:
    """Write the results as JSON."""
    result = {
        "command": command,
        "machine": describe_machine(),
        "python": platform.python_version(),
        "runs": [asdict(run) for run in results.runs],
        "summary": [asdict(cell) for cell in summarise(results.runs)],
        "skipped": dict(results.skipped),
        "ttft": [asdict(row) | {"ratio": row.ratio} for row in results.ttft],
        "decode": [asdict(row) for row in results.decode],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


def _workload_table(workload: str, cells: Sequence[Cell]) -> Table:
    """Servers across, columns down; for a server of ours the ratio to the best peer beside it."""
    servers = list(dict.fromkeys(cell.server for cell in cells))
    table = Table(title=f"{workload}: median (lowest to highest)")
    table.add_column("")
    for server in servers:
        table.add_column(server, justify="right")
        if server in OURS:
            table.add_column("to the best peer")
    for column in dict.fromkeys(cell.column for cell in cells):
        row = [_TITLES.get(column, column.replace("_", " "))]
        for server in servers:
            cell = next((c for c in cells if (c.server, c.column) == (server, column)), None)
            row.append("-" if cell is None else _value(cell))
            if server in OURS:
                row.append("-" if cell is None else _ratio(cell))
        table.add_row(*row)
    return table


def _value(cell: Cell) -> str:
    spread = f" ({_number(cell.lowest)} to {_number(cell.highest)})" if cell.runs > 1 else ""
    return _number(cell.median) + spread


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(cell: Cell) -> str:
    if cell.best_peer is None or cell.best_peer not in cell.ratios:
        return "-"
    return f"{cell.ratios[cell.best_peer]:.2f} x {cell.best_peer}"


def _memory_table(runs: Sequence[Run]) -> Table:
    table = Table(
        "workload", "server", "before, MB", "after, MB", "input tokens reused",
        title="Memory of all processes (PSS), last run",
    )  # fmt: skip
    last = {(run.play.workload, run.play.server): run for run in runs if run.memory_mb}
    for (workload, server), run in last.items():
        before, after = run.memory_mb or (0.0, 0.0)
        reused = f"{run.cached_tokens / run.input_tokens:.0%}" if run.input_tokens else "-"
        table.add_row(workload, server, f"{before:.0f}", f"{after:.0f}", reused)
    return table


def _ttft_table(rows: Sequence[TtftRow]) -> Table:
    table = Table(
        "history tokens", "new", "KV kept ms", "recomputed ms", "ratio", "reused",
        title="Time to first token, median",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            str(row.history_tokens),
            str(row.new_tokens),
            f"{row.kept_ms:.0f}",
            f"{row.recomputed_ms:.0f}",
            f"{row.ratio:.1f}x",
            str(row.kept_cached_tokens),
        )
    return table


def _decode_table(rows: Sequence[DecodeRow]) -> Table:
    table = Table(
        "sessions", "tokens/s all", "tokens/s each", "ratio to one", title="Decode, KV kept"
    )
    for row in rows:
        table.add_row(
            str(row.sessions),
            f"{row.tokens_per_s:.1f}",
            f"{row.tokens_per_s_each:.1f}",
            f"{row.tokens_per_s / rows[0].tokens_per_s:.1f}x",
        )
    return table


def load_growth(path: Path) -> dict[str, list[tuple[int, float]]]:
    """TTFT against history out of a written result: by server, (prompt tokens, ms) per turn."""
    result: dict[str, Any] = json.loads(path.read_text())
    growth: dict[str, list[tuple[int, float]]] = {}
    for run in result["runs"]:
        for tokens, ttft_ms in run["growth"]:
            growth.setdefault(run["play"]["server"], []).append((tokens, ttft_ms))
    return growth
