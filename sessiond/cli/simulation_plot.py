"""Hit ratio against capacity, one line per policy, as a PNG. Needs the extra `plots`."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from engine.simulation.outcome import Outcome


def write_plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Plot all outcomes of one trace. Oracles are dashed."""
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
