"""Formats a ramp's report as a self-contained HTML page and as a terminal table. Pure."""

import base64
from collections.abc import Sequence
from html import escape

from rich.table import Table

from sessiond.capacity.report import Check, Report, answer
from sessiond.capacity.stages import LoadStage

_COLUMNS = (
    "turn/s", "tok/s", "warm50", "warm95", "cold95", "next95", "pool", "queue", "shed",
    "lost", "evict", "preem",
)  # fmt: skip
LEGEND = (
    "warm, cold: TTFT, and next: time between tokens, in ms, by percentile; pool: highest share "
    "of blocks in use; queue: waiting turns; shed: refused attempts; lost: lost conversations; "
    "evict: evictions of idle KV; preem: preemptions of running turns"
)


def stage_table(stages: Sequence[LoadStage]) -> Table:
    """Build a table with one row per stage."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    for name in _columns(stages):
        table.add_column(name, justify="right", no_wrap=True)
    for stage in stages:
        table.add_row(*_cells(stage))
    return table


def _columns(stages: Sequence[LoadStage]) -> tuple[str, ...]:
    by_length = any(stage.length_tokens for stage in stages)
    return ("tokens" if by_length else "users", *_COLUMNS)


def _cells(stage: LoadStage) -> tuple[str, ...]:
    return (
        str(stage.length_tokens or stage.users),
        f"{stage.turns_per_s:.2f}",
        f"{stage.tokens_per_s:.0f}",
        *(
            "-" if value is None else f"{value * 1000:.0f}"
            for value in (
                stage.ttft_warm_p50_s,
                stage.ttft_warm_p95_s,
                stage.ttft_cold_p95_s,
                stage.inter_token_p95_s,
            )
        ),
        f"{stage.pool_use:.0%}",
        f"{stage.waiting:.1f}",
        str(stage.refusals),
        str(stage.lost),
        f"{stage.evictions:.0f}",
        f"{stage.preemptions:.0f}",
    )


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Format the checks of a second run, one sentence per stage."""
    return [
        f"{one.found.users} users: {one.expected.tokens_per_s:.0f} tokens/s expected, "
        f"{one.found.tokens_per_s:.0f} found ({_share(one)}); warm first token "
        f"{_ms(one.expected.ttft_warm_p50_s)} expected, {_ms(one.found.ttft_warm_p50_s)} found: "
        f"{'holds' if one.holds else 'DOES NOT HOLD'}"
        for one in checks
    ]


def _share(one: Check) -> str:
    expected = one.expected.tokens_per_s
    return f"{one.found.tokens_per_s / expected - 1:+.0%}" if expected else "none expected"


def html_page(report: Report, picture: bytes, users: int | None) -> str:
    """Build the report for a browser, with the picture embedded."""
    image = base64.b64encode(picture).decode()
    head = "".join(f"<th>{escape(name)}</th>" for name in _columns(report.stages))
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(stage))}</tr>"
        for stage in report.stages
    )
    sentences = "".join(f"<p>{escape(line)}</p>" for line in answer(report, users))
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<title>Capacity of {escape(report.model)}</title><style>{_STYLE}</style>"
        f"<h1>Capacity of {escape(report.model)}</h1><p>{escape(report.load)}</p>{sentences}"
        f"<img alt='Throughput, latency and memory over users' src='data:image/png;base64,{image}'>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><p>{escape(LEGEND)}</p></html>\n"
    )


_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "img{max-width:100%;background:#fff;border-radius:6px}"
    "table{border-collapse:collapse;margin-top:1rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #8884}"
)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"
