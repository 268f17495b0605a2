"""Kept KV against recomputed, and decode rates: this project's server alone, two set-ups of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.decode import DecodeRow, measure_decode
from benchmarks.server_process import NO_REUSE, running_server
from benchmarks.ttft import TtftRow, measure_ttft

Row = TypeVar("Row", TtftRow, DecodeRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlan:
    """What is measured of kept KV against recomputed."""

    histories: Sequence[int]
    repetitions: int
    sessions: Sequence[int]
    reply_tokens: int


FULL = KeptPlan(
    histories=(512, 2048, 4096, 7000), repetitions=3, sessions=(1, 8, 32), reply_tokens=64
)
QUICK = KeptPlan(histories=(256,), repetitions=2, sessions=(1, 2), reply_tokens=8)


def measure_kept(folder: Path, plan: KeptPlan) -> tuple[list[TtftRow], list[DecodeRow]]:
    """Measure both; prints each row as soon as it is there, for a run takes minutes.

    Raises:
        RuntimeError: a server does not start, or a turn did not bring a reply.
    """
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
    print(row, flush=True)
    return row
