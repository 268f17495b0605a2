"""`python -m benchmarks.footprint`: what a server takes while it does nothing.

Starts a server on the native kernels and on torch, each alone. Measures the time from its start
until turns are taken, the memory of both processes before the first turn and after some, what of
the KV pool is committed, and the CPU time of both processes while nothing is asked: without
clients, and with idle sessions attached.
"""

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.load_client import LoadClient
from benchmarks.machine import describe_machine
from benchmarks.process_memory import MIB, Memory, children_of, cpu_s, memory_of
from benchmarks.server_process import ServerProcess
from benchmarks.texts import QUESTIONS

_RESULTS = Path(__file__).parent / "results"
SERVERS: dict[str, tuple[str, ...]] = {
    "native": (),
    "torch float16": ("--device", "cpu", "--dtype", "float16"),
    "torch float32": ("--device", "cpu", "--dtype", "float32"),
}
"""Flags by name. On a CPU bfloat16 is the native kernels', so torch's 16 bits are float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured, and for how long."""

    servers: Sequence[str]
    settle_s: float
    window_s: float
    sessions: int


FULL = Plan(servers=tuple(SERVERS), settle_s=60, window_s=20, sessions=10)
QUICK = Plan(servers=("native",), settle_s=0.5, window_s=1, sessions=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """One server. Shares are of one core, both processes together."""

    server: str
    ready_s: float
    gateway: Memory
    engine: Memory
    gateway_used: Memory
    engine_used: Memory
    cpu_share: float
    cpu_share_attached: float

    @property
    def idle_pss(self) -> int:
        """Bytes of both processes before the first turn."""
        return self.gateway.pss + self.engine.pss


def main(
    *,
    quick: Annotated[bool, typer.Option(help="Only the native server, and hardly a wait.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes.")] = None,
) -> None:
    """Measure servers of the default model one after the other, print a table, write JSON."""
    plan = QUICK if quick else FULL
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, Path(folder) / name, plan) for name in plan.servers]
    show(rows)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    path = output or _RESULTS / f"footprint-{stamp}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": describe_machine(), "servers": [asdict(row) for row in rows]}
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"Written to {path}")


def measure(name: str, folder: Path, plan: Plan) -> Footprint:
    """Start one server, measure, stop it."""
    folder.mkdir(parents=True)
    server = ServerProcess(folder, SERVERS[name])
    start_s = time.monotonic()
    server.start()
    ready_s = time.monotonic() - start_s
    try:
        gateway = server.process.pid
        (engine,) = children_of(gateway)
        time.sleep(plan.settle_s)
        before = memory_of(gateway), memory_of(engine)
        share = _cpu_share((gateway, engine), plan.window_s)
        after, share_attached = asyncio.run(_with_sessions(server.url, (gateway, engine), plan))
    finally:
        server.stop()
    return Footprint(
        server=name,
        ready_s=ready_s,
        gateway=before[0],
        engine=before[1],
        gateway_used=after[0],
        engine_used=after[1],
        cpu_share=share,
        cpu_share_attached=share_attached,
    )


async def _with_sessions(
    url: str, pids: tuple[int, int], plan: Plan
) -> tuple[tuple[Memory, Memory], float]:
    """Attach sessions with one turn each, let them idle; memory and share of a core then."""
    async with contextlib.AsyncExitStack() as stack:
        for index in range(plan.sessions):
            client = await stack.enter_async_context(LoadClient(url, max_output_tokens=16))
            await client.ask(QUESTIONS[index % len(QUESTIONS)])
        await asyncio.sleep(plan.settle_s)
        # in a thread: the sockets' pings want answers meanwhile
        share = await asyncio.to_thread(_cpu_share, pids, plan.window_s)
        return (memory_of(pids[0]), memory_of(pids[1])), share


def _cpu_share(pids: Sequence[int], window_s: float) -> float:
    start_s, before = time.monotonic(), sum(map(cpu_s, pids))
    time.sleep(window_s)
    return (sum(map(cpu_s, pids)) - before) / (time.monotonic() - start_s)


def show(rows: Sequence[Footprint]) -> None:
    """Print the tables."""
    console = Console()
    console.print(describe_machine())
    idle = Table("", *(row.server for row in rows), title="A server that does nothing")
    idle.add_row("ready after, s", *(f"{row.ready_s:.1f}" for row in rows))
    idle.add_row("PSS before the first turn, MB", *(_mb(row.idle_pss) for row in rows))
    idle.add_row("  gateway", *(_in_words(row.gateway) for row in rows))
    idle.add_row("  engine", *(_in_words(row.engine) for row in rows))
    idle.add_row("  gateway, after turns", *(_in_words(row.gateway_used) for row in rows))
    idle.add_row("  engine, after turns", *(_in_words(row.engine_used) for row in rows))
    idle.add_row("mapping with the pool, MB", *(_mb(row.engine.largest) for row in rows))
    idle.add_row("  committed", *(_mb(row.engine.largest_committed) for row in rows))
    idle.add_row("  after turns", *(_mb(row.engine_used.largest_committed) for row in rows))
    idle.add_row("share of a core", *(f"{row.cpu_share:.2%}" for row in rows))
    idle.add_row("  with sessions", *(f"{row.cpu_share_attached:.2%}" for row in rows))
    console.print(idle)


def _mb(size: int) -> str:
    return f"{size / MIB:.0f}"


def _in_words(memory: Memory) -> str:
    own, files, peak = map(_mb, (memory.pss_anonymous, memory.pss_files, memory.peak_rss))
    return f"{_mb(memory.pss)} (own {own}, files {files}; peak RSS {peak})"


if __name__ == "__main__":
    typer.run(main)
