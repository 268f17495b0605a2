"""Plots a ramp: throughput, TTFT, ITL and memory over users or lengths, as one PNG."""

import io
from collections.abc import Sequence
from typing import Any

from sessiond.capacity.report import Report
from sessiond.capacity.stages import LoadStage

_BLUE, _ORANGE, _GREEN, _GREY = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#666666",
)  # distinguishable with any colour vision


def draw(report: Report) -> bytes:
    """Plot a PNG of four panels; a vertical line marks the knee in each."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    stages = sorted(report.stages, key=lambda stage: (stage.users, stage.length_tokens))
    longest = report.knee.length_tokens
    knee = report.knee.users if longest is None else longest
    users = [stage.users if longest is None else stage.length_tokens for stage in stages]
    figure = Figure(figsize=(10, 6.5), dpi=110, layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    figure.suptitle(f"{report.model}: {report.load}", fontsize=11)
    _lines(
        axes[0][0], "tokens per second", users, [("written", _BLUE, _of(stages, "tokens_per_s", 1))]
    )
    _lines(
        axes[0][1],
        "first token, ms",
        users,
        [
            ("warm, p50", _BLUE, _of(stages, "ttft_warm_p50_s", 1000)),
            ("warm, p95", _ORANGE, _of(stages, "ttft_warm_p95_s", 1000)),
            ("cold, p95", _GREEN, _of(stages, "ttft_cold_p95_s", 1000)),
        ],
    )
    _lines(
        axes[1][0],
        "between tokens, p95, ms",
        users,
        [("p95", _ORANGE, _of(stages, "inter_token_p95_s", 1000))],
    )
    _lines(
        axes[1][1],
        "KV in use, MiB",
        users,
        [("most", _GREEN, _of(stages, "kv_bytes", 1 / 2**20))],
    )
    for axis in axes.flat:
        if report.knee.found:
            axis.axvline(knee, color=_GREY, linestyle="--", linewidth=1)
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)
    for axis in axes[1]:
        axis.set_xlabel("concurrent users" if longest is None else "tokens of a conversation")
    if report.knee.found:
        axes[0][0].annotate(
            "knee", (knee, 0), xytext=(4, 6), textcoords="offset points", color=_GREY
        )
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _lines(
    axis: Any, title: str, users: Sequence[int], lines: Sequence[tuple[str, str, list[float]]]
) -> None:
    for name, colour, values in lines:
        axis.plot(users, values, marker="o", markersize=4, color=colour, label=name)
    axis.set_title(title, fontsize=10)
    axis.grid(alpha=0.3)
    if len(lines) > 1:
        axis.legend(fontsize=8, frameon=False)


def _of(stages: Sequence[LoadStage], name: str, scale: float) -> list[float]:
    values = [getattr(stage, name) for stage in stages]
    return [float("nan") if value is None else value * scale for value in values]
