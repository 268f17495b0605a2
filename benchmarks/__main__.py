"""`python -m benchmarks`: time to first token with and without kept KV, and decode throughput."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from benchmarks.decode import DecodeRow, measure_decode
from benchmarks.report import show, store
from benchmarks.server_process import NO_REUSE, running_server
from benchmarks.ttft import TtftRow, measure_ttft

Row = TypeVar("Row", TtftRow, DecodeRow)
_RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    histories: Sequence[int]
    repetitions: int
    sessions: Sequence[int]
    reply_tokens: int


FULL = Plan(histories=(512, 2048, 4096, 7000), repetitions=3, sessions=(1, 8, 32), reply_tokens=64)
QUICK = Plan(histories=(256,), repetitions=2, sessions=(1, 2), reply_tokens=8)


def main(
    *,
    quick: Annotated[bool, typer.Option(help="A minute instead of a quarter of an hour.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes.")] = None,
) -> None:
    """Start two servers of the default model, measure through their sockets, print ratios."""
    plan = QUICK if quick else FULL
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    with tempfile.TemporaryDirectory() as folder:
        ttft, decode = _measure(Path(folder), plan)
    show(ttft, decode)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    path = output or _RESULTS / f"{stamp}{'-quick' if quick else ''}.json"
    store(path, " ".join(["python -m benchmarks", *sys.argv[1:]]), ttft, decode)
    print(f"Written to {path}")


def _measure(folder: Path, plan: Plan) -> tuple[list[TtftRow], list[DecodeRow]]:
    with running_server(folder / "kept") as kept:
        with running_server(folder / "recomputed", NO_REUSE) as recomputed:
            ttft = [
                _told(asyncio.run(measure_ttft(kept.url, recomputed.url, tokens, plan.repetitions)))
                for tokens in plan.histories
            ]
        decode = [
            _told(asyncio.run(measure_decode(kept.url, sessions, plan.reply_tokens)))
            for sessions in plan.sessions
        ]
    return ttft, decode


def _told(row: Row) -> Row:
    """Show a row as soon as it is there: a run takes minutes."""
    print(row, flush=True)
    return row


if __name__ == "__main__":
    typer.run(main)
