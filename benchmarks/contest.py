"""Runs each server's workloads, one after the other. Failures are reported; the rest runs."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.contestants import Contestant, Running
from benchmarks.play import Played, play, raw_rates
from benchmarks.process_tree import pss_mb
from benchmarks.rate_tools import RateTool
from benchmarks.schedule import RAW, Play
from benchmarks.turn_times import TurnTimes, figures, growth_figures
from benchmarks.workloads import W4, WORKLOADS, Workload

T = TypeVar("T")
GROWTH_MARKS = (400, 4000, 8000)
_PLAY_LIMIT_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one play brought. Memory in 10^6 bytes (PSS of all processes), before and after.

    `growth` has (prompt tokens, TTFT in ms) of each turn of a chat that grows.
    """

    play: Play
    figures: dict[str, float] = field(default_factory=dict)
    memory_mb: tuple[float, float] | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    growth: list[tuple[int, float]] = field(default_factory=list)
    took_s: float = 0.0
    fault: str = ""


class Contest:
    """Plays with so many contestants. After each play `tell` gets a line and all runs so far."""

    def __init__(
        self,
        contestants: Mapping[str, Contestant],
        tools: Mapping[str, RateTool],
        tell: Callable[[str, Sequence[Run]], None],
    ) -> None:
        self._contestants = contestants
        self._tools = tools
        self._tell = tell

    def run(self, plays: list[Play]) -> list[Run]:
        """Play all."""
        runs: list[Run] = []
        for number, one in enumerate(plays, 1):
            run = self._run(one)
            runs.append(run)
            self._tell(f"[{number}/{len(plays)}] {_told(run)}", runs)
        return runs

    def _run(self, one: Play) -> Run:
        start_s = time.monotonic()
        try:
            if one.workload == RAW and one.server in self._tools:
                return Run(
                    play=one,
                    figures=self._tools[one.server](),
                    took_s=time.monotonic() - start_s,
                )
            workload = WORKLOADS.get(one.workload)
            with self._contestants[one.server].serve(workload) as running:
                return _measured(one, workload, running)
        except Exception as error:  # whatever a peer does, the run goes on
            fault = f"{type(error).__name__}: {error}"
            return Run(play=one, fault=fault, took_s=time.monotonic() - start_s)


def _measured(one: Play, workload: Workload | None, running: Running) -> Run:
    start_s, before_mb = time.monotonic(), pss_mb(running.pid)
    turns: list[TurnTimes] = []
    if workload is None:
        columns = asyncio.run(_in_time(raw_rates(one.seed, running.open_chat)))
    else:
        played = asyncio.run(_in_time(play(workload, one.seed, running.open_chat)))
        columns = _columns(workload, played)
        turns = [turn for session in played.sessions for turn in session]
    return Run(
        play=one,
        figures=columns,
        memory_mb=(before_mb, pss_mb(running.pid)),
        input_tokens=sum(turn.input_tokens for turn in turns),
        cached_tokens=sum(turn.cached_tokens for turn in turns),
        growth=[(turn.input_tokens, 1e3 * turn.ttft_s) for turn in turns] if workload is W4 else [],
        took_s=time.monotonic() - start_s,
    )


async def _in_time(work: Coroutine[None, None, T]) -> T:
    async with asyncio.timeout(_PLAY_LIMIT_S):
        return await work


def _columns(workload: Workload, played: Played) -> dict[str, float]:
    if workload is W4:
        return growth_figures(played.sessions[0], GROWTH_MARKS)
    columns = figures(played.sessions, played.wall_s)
    if workload.think_s:
        del columns["tok_s"]  # the pauses are in it
    return columns


def _told(run: Run) -> str:
    who = f"{run.play.workload} #{run.play.repetition + 1} {run.play.server}"
    if run.fault:
        return f"{who}: FAILED after {run.took_s:.0f} s: {run.fault}"
    columns = ", ".join(f"{name} {value:.4g}" for name, value in run.figures.items())
    return f"{who}: {columns} ({run.took_s:.0f} s)"
