"""Medians, spread and ratios out of single runs. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.contest import Run
from benchmarks.schedule import OURS

_HIGHER_IS_BETTER = ("tok_s", "prefill_", "decode_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One column of one server over its repetitions.

    `ratios` holds, for a server of ours, geometric mean over geometric mean of each peer that has
    played; `best_peer` is the one that is best in this column.
    """

    workload: str
    server: str
    column: str
    runs: int
    median: float
    lowest: float
    highest: float
    ratios: dict[str, float] = field(default_factory=dict)
    best_peer: str | None = None


def summarise(runs: Sequence[Run]) -> list[Cell]:
    """One cell per workload, server and column, in the order of their first run."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for run in runs:
        for column, value in run.figures.items():
            key = (run.play.workload, run.play.server, column)
            values.setdefault(key, []).append(value)
    means = {key: geometric_mean(found) for key, found in values.items()}
    return [_cell(key, found, means) for key, found in values.items()]


def higher_is_better(column: str) -> bool:
    """Whether a column counts what one wants more of."""
    return column.startswith(_HIGHER_IS_BETTER)


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean; 0 when a value is 0, as a gap may be."""
    return statistics.geometric_mean(values) if all(value > 0 for value in values) else 0.0


def _cell(
    key: tuple[str, str, str], found: list[float], means: dict[tuple[str, str, str], float]
) -> Cell:
    workload, server, column = key
    peers = {
        other: mean
        for (its_workload, other, its_column), mean in means.items()
        if (its_workload, its_column) == (workload, column) and other not in OURS
    }
    ratios: dict[str, float] = {}
    best_peer = None
    if peers and server in OURS:
        choose = max if higher_is_better(column) else min
        best_peer = choose(peers, key=lambda name: peers[name])
        ratios = {name: means[key] / mean for name, mean in peers.items() if mean}
    return Cell(
        workload=workload,
        server=server,
        column=column,
        runs=len(found),
        median=statistics.median(found),
        lowest=min(found),
        highest=max(found),
        ratios=ratios,
        best_peer=best_peer,
    )
