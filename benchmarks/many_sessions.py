"""What waits for what while many sessions are idle: `python -m benchmarks.many_sessions`.

A gateway in this process and an engine of the default model in another; clients in a third open
sessions of one short message each, which hold KV. Then, for some time, `/metrics` is asked
regularly, and one session writes. Printed for that time:

- `gateway callback`: each callback of the event loop, garbage collection included; no other client
  is answered while one runs.
- `gateway collection`, `engine collection`: of garbage, from the first session on; part of the
  others.
- `engine question`, `engine command`, `engine before a step`: what the engine does between two
  computations of the model, since the start: while the sessions are opened, too.
- `GET /metrics`: from the request to the last byte.

All but the last are processor time of their thread, so they say something on a busy machine, too.
The slowest callbacks are named.
"""

import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import tempfile
import time
from asyncio.events import Handle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import connect

from benchmarks.machine import describe_machine
from benchmarks.own_server import PATIENCE_S, own_server
from benchmarks.scrape import open_sessions, time_requests
from engine.bootstrap import build_engine
from engine.config import EngineConfig
from engine.ipc.command_reader import Emit, Loop
from engine.ipc.messages import Command, EngineInfo
from engine.ipc.queries import Query, QueryResult
from engine.ipc.worker_client import WorkerEngine
from sessiond.cli.model import pull_with_progress
from sessiond.settings import Settings
from sessiond.store.migrate import upgrade

_TIMES_FILE = "BENCHMARK_ENGINE_TIMES"
_BLOCKS_EACH = 2
_BLOCK_BYTES = 400 * 1024  # of the default model, more or less: room for all, so that none is cold
_SCRAPES_PER_S = 10
_NAMED = 5
_STORY_TOKENS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Milliseconds of what happened `count` times."""

    what: str
    count: int
    p50: float
    p99: float
    most: float


def times_of(what: str, seconds: Sequence[float]) -> Times:
    """The spread of measured seconds."""
    ordered = [round(1000 * one, 3) for one in sorted(seconds)] or [0.0]
    return Times(
        what=what,
        count=len(seconds),
        p50=ordered[len(ordered) // 2],
        p99=ordered[int(0.99 * (len(ordered) - 1))],
        most=ordered[-1],
    )


# --- the gateway ---------------------------------------------------------------------------------


class Collections:
    """Times the collections of garbage in this process, of all generations."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began_s = 0.0

    def begin(self) -> None:
        """From now on."""
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _about: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = time.thread_time()
        else:
            self.seconds.append(time.thread_time() - self._began_s)


class Callbacks:
    """Times every callback of this thread's event loop while it is `recorded`."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.slowest: list[tuple[float, str]] = []

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """As asyncio runs them: it has no other place to look at this from."""
        run = Handle._run  # noqa: SLF001 -- see above

        def timed(handle: Handle) -> None:
            began_s = time.thread_time()
            run(handle)
            self._note(time.thread_time() - began_s, handle)

        Handle._run = timed  # type: ignore[assignment, method-assign]  # noqa: SLF001 -- see above
        try:
            yield
        finally:
            Handle._run = run  # type: ignore[method-assign]  # noqa: SLF001 -- see above

    def _note(self, seconds: float, handle: Handle) -> None:
        self.seconds.append(seconds)
        if len(self.slowest) < _NAMED or seconds > self.slowest[-1][0]:
            self.slowest = sorted([*self.slowest, (seconds, repr(handle))], reverse=True)[:_NAMED]


# --- the engine ----------------------------------------------------------------------------------


class TimedLoop:
    """Turns the engine's loop, and writes down what it took when its process ends."""

    def __init__(self, loop: Loop, path: Path) -> None:
        self._loop = loop
        self._path = path
        self._collections = Collections()
        self._seconds: dict[str, list[float]] = {
            "question": [],
            "command": [],
            "before a step": [],
            "collection": self._collections.seconds,
        }

    @property
    def rest_s(self) -> float | None:
        """See `engine.ipc.command_reader.Loop`."""
        return self._loop.rest_s

    def handle(self, command: Command) -> None:
        """See `engine.ipc.command_reader.Loop`. With the first one the start is over."""
        if not self._seconds["command"]:
            self._collections.begin()
        with self._timed("command"):
            self._loop.handle(command)

    def answer(self, query: Query) -> QueryResult:
        """See `engine.ipc.command_reader.Loop`."""
        with self._timed("question"):
            return self._loop.answer(query)

    def step(self, flush: Callable[[], None]) -> bool:
        """See `engine.ipc.command_reader.Loop`. Times what precedes the model, and idle steps."""
        began_s, told = time.thread_time(), False

        def tell_timed() -> None:
            nonlocal told
            told = True
            self._seconds["before a step"].append(time.thread_time() - began_s)
            flush()

        did = self._loop.step(tell_timed)
        if not told:
            self._seconds["before a step"].append(time.thread_time() - began_s)
        return did

    def close(self) -> None:
        """See `engine.ipc.command_reader.Loop`."""
        self._loop.close()
        self._path.write_text(json.dumps(self._seconds))

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began_s = time.thread_time()
        yield
        self._seconds[what].append(time.thread_time() - began_s)


def timed_engine(config: EngineConfig, emit: Emit) -> tuple[Loop, EngineInfo]:
    """The engine of the settings, timed: what `WorkerEngine` builds."""
    loop, info = build_engine(config, emit, report=lambda _text: None)
    return TimedLoop(loop, Path(os.environ[_TIMES_FILE])), info


# --- the clients ---------------------------------------------------------------------------------


def clients(url: str, sessions: int, seconds: float, parent: Connection) -> None:
    """In a process of its own: open sessions, tell so, scrape and write, tell what scrapes took."""
    parent.send(asyncio.run(_talk(url, sessions, seconds, parent)))


async def _talk(url: str, sessions: int, seconds: float, parent: Connection) -> list[float]:
    ws_url = f"ws{url.removeprefix('http')}/v1/responses"
    ws = await open_sessions(ws_url, sessions)
    parent.send("open")
    writing = await connect(ws_url, proxy=None, compression=None)
    question = {"input": "Tell a long story.", "max_output_tokens": _STORY_TOKENS}
    told: list[float] = []
    async with asyncio.timeout(seconds + PATIENCE_S):
        until_s = time.monotonic() + seconds
        await writing.send(json.dumps({"type": "response.create", **question}))
        while time.monotonic() < until_s:
            cost = await asyncio.to_thread(time_requests, url, "/metrics", sessions, 1)
            told.append(cost.max_ms / 1000)
            await asyncio.sleep(1 / _SCRAPES_PER_S)
    await writing.close()
    await ws.close()
    return told


# --- all of it -----------------------------------------------------------------------------------


def prepare(folder: Path, sessions: int) -> tuple[Settings, Path]:
    """The settings of a server with room for all; its database is there, and so is its model."""
    settings = Settings.model_validate(
        {
            "db": f"sqlite+aiosqlite:///{folder / 'sessiond.db'}",
            "kv_cache_memory": (sessions * _BLOCKS_EACH + 256) * _BLOCK_BYTES,
        }
    )
    upgrade(settings.db)
    return settings, pull_with_progress(settings.model, Console(quiet=True))


async def measure(
    settings: Settings, model: Path, folder: Path, sessions: int, seconds: float
) -> tuple[list[Times], list[str]]:
    """Serve those clients. Returns what was measured, and the slowest callbacks in words."""
    os.environ[_TIMES_FILE] = str(folder / "engine.json")
    engine = WorkerEngine(
        settings.engine_config(),
        stop_grace_s=PATIENCE_S,  # it has to write down what was measured
        loop_factory="benchmarks.many_sessions:timed_engine",
    )
    callbacks, collections = Callbacks(), Collections()
    async with own_server(settings, model, engine) as url:
        collections.begin()
        scrapes = await _attend(url, sessions, seconds, callbacks)
    taken: dict[str, list[float]] = json.loads((folder / "engine.json").read_text())
    rows = [
        times_of("gateway callback", callbacks.seconds),
        times_of("gateway collection", collections.seconds),
    ]
    rows += [times_of(f"engine {what}", found) for what, found in taken.items()]
    slowest = [f"{1000 * took:.1f} ms: {name}" for took, name in callbacks.slowest]
    return [*rows, times_of("GET /metrics", scrapes)], slowest


async def _attend(url: str, sessions: int, seconds: float, callbacks: Callbacks) -> list[float]:
    """Have clients at work; from the moment that all sessions are open callbacks are timed."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=clients, args=(url, sessions, seconds, theirs)
    )
    process.start()
    theirs.close()  # only theirs reports the clients' end
    try:
        await asyncio.to_thread(ours.recv)
        with callbacks.recorded():
            scrapes: list[float] = await asyncio.to_thread(ours.recv)
    finally:
        process.join()
    return scrapes


def main(
    sessions: Annotated[int, typer.Option(help="How many are idle.")] = 10_000,
    seconds: Annotated[float, typer.Option(help="How long to look.")] = 60.0,
    output: Annotated[Path | None, typer.Option(help="Where the figures go, as JSON.")] = None,
) -> None:
    """Look at a server with many idle sessions."""
    with tempfile.TemporaryDirectory() as folder:
        settings, model = prepare(Path(folder), sessions)
        rows, slowest = asyncio.run(measure(settings, model, Path(folder), sessions, seconds))
    table = Table("ms", "times", "p50", "p99", "most")
    for row in rows:
        table.add_row(*map(str, asdict(row).values()))
    console = Console()
    console.print(describe_machine(), f"{sessions} sessions")
    console.print(table)
    console.print("slowest callbacks:", *slowest, sep="\n")
    if output is not None:
        result = {"machine": describe_machine(), "rows": [asdict(row) for row in rows]}
        output.write_text(json.dumps(result | {"slowest": slowest}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
