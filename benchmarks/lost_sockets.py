"""How soon the KV of a client that is lost can be used again, by the clocks of those involved.

While others decode, a client drops its socket amid its reply. Three processes take part: clients,
the gateway (this one) and the engine. Each notes when it did its part, by the system's one clock
that only goes forward: the client dropped the socket, the gateway told the engine, the engine had
given back the last block. The engine, which can't be stopped amid a step, notes its steps, too.
"""

import asyncio
import json
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.disconnect import CapacityPoll, Crowd
from benchmarks.load_client import LoadClient
from benchmarks.own_server import own_server
from benchmarks.workloads import message
from engine.bootstrap import build_engine
from engine.config import EngineConfig
from engine.ipc.client import ContextCommand
from engine.ipc.command_reader import Emit, Loop
from engine.ipc.messages import Command, EngineInfo, ReleaseContext
from engine.ipc.queries import Query, QueryResult
from engine.ipc.worker_client import WorkerEngine
from sessiond.cli.model import pull_with_progress
from sessiond.settings import Settings
from sessiond.store.migrate import upgrade

_NOTES_FILE = "BENCHMARK_ENGINE_NOTES"
_STEPS = 8  # of the engine that are remembered: a socket was lost in one of the last two
_PLACES = 5  # the drops fall at these many places of a step, evenly
_PROMPT_TOKENS = 500
_REPLY_TOKENS = 1000


class EngineNote(msgspec.Struct, frozen=True, kw_only=True):
    """A session's blocks were free at `free_s`, after steps that began and ended then."""

    session: str
    free_s: float
    steps: list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A socket that was lost, in seconds of the one clock."""

    session: str
    dropped_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSocket:
    """What became of it, in milliseconds.

    `told`: from the drop until the gateway has told the engine. `free`: until all blocks are free.
    `step`: until the end of the step in which the socket was dropped. `late`: the engine was told
    when that had ended, and the next one may have begun.
    """

    told: float
    free: float
    step: float
    late: bool

    @property
    def added(self) -> float:
        """What was added to the step in flight."""
        return self.free - self.step


# --- the engine ----------------------------------------------------------------------------------


class NotedLoop:
    """Turns the engine's loop, and writes down each release as it is done."""

    def __init__(self, loop: Loop, path: Path) -> None:
        self._loop = loop
        self._notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._steps: deque[tuple[float, float]] = deque(maxlen=_STEPS)

    @property
    def rest_s(self) -> float | None:
        """See `engine.ipc.command_reader.Loop`."""
        return self._loop.rest_s

    def handle(self, command: Command) -> None:
        """See `engine.ipc.command_reader.Loop`. A release follows the cancel of the turn."""
        self._loop.handle(command)
        if isinstance(command, ReleaseContext):
            free_s, steps = time.monotonic(), list(self._steps)
            note = EngineNote(session=command.session, free_s=free_s, steps=steps)
            os.write(self._notes, msgspec.json.encode(note) + b"\n")

    def answer(self, query: Query) -> QueryResult:
        """See `engine.ipc.command_reader.Loop`."""
        return self._loop.answer(query)

    def step(self, flush: Callable[[], None]) -> bool:
        """See `engine.ipc.command_reader.Loop`."""
        began_s = time.monotonic()
        did = self._loop.step(flush)
        if did:
            self._steps.append((began_s, time.monotonic()))
        return did

    def close(self) -> None:
        """See `engine.ipc.command_reader.Loop`."""
        self._loop.close()


def noted_engine(config: EngineConfig, emit: Emit) -> tuple[Loop, EngineInfo]:
    """The engine of the settings, with notes: what `WorkerEngine` builds."""
    loop, info = build_engine(config, emit, report=lambda _text: None)
    return NotedLoop(loop, Path(os.environ[_NOTES_FILE])), info


class ToldEngine(WorkerEngine):
    """Notes when it was told of each release: the first time counts."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, loop_factory="benchmarks.lost_sockets:noted_engine")
        self.told_s: dict[str, float] = {}

    def send(self, command: ContextCommand) -> None:
        """See `WorkerEngine`."""
        super().send(command)
        if isinstance(command, ReleaseContext):
            self.told_s.setdefault(command.session, time.monotonic())


# --- the clients ---------------------------------------------------------------------------------


def clients(url: str, times: int, others: int, parent: Connection) -> None:
    """In a process of its own: drop sockets, tell when."""
    parent.send(asyncio.run(_drops(url, times, others)))


async def _drops(url: str, times: int, others: int) -> list[Drop]:
    poll = CapacityPoll(url)
    try:
        async with Crowd(url).of(others, "lost") as crowd:
            return [await _drop(url, number, crowd, poll) for number in range(times)]
    finally:
        poll.close()


async def _drop(url: str, number: int, crowd: Crowd, poll: CapacityPoll) -> Drop:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(LoadClient(url, temperature=0))
        await client.send(
            message("lost", number, 1, _PROMPT_TOKENS), max_output_tokens=_REPLY_TOKENS
        )
        session = await _session_of(client)
        await crowd.steps(2)
        began_s, ended_s = crowd.last_step()
        await asyncio.sleep((ended_s - began_s) * (number % _PLACES) / _PLACES)
        dropped_s = time.monotonic()
        client.socket.transport.abort()
    await crowd.steps(2)
    await poll.open(1)
    await poll.first({"running": crowd.size, "waiting": 0})
    return Drop(session=session, dropped_s=dropped_s)


async def _session_of(client: LoadClient) -> str:
    """The session of a turn that has begun to say something."""
    session = ""
    while True:
        event = json.loads(await client.socket.recv())
        if event["type"] == "response.created":
            session = event["response"]["conversation"]["id"]
        if event["type"] == "response.output_text.delta":
            return session


# --- all of it -----------------------------------------------------------------------------------


def lost_sockets(folder: Path, times: int, others: int) -> list[LostSocket]:
    """Drop so many sockets while `others` decode, on a server of the default model."""
    settings = Settings.model_validate(
        {
            "db": f"sqlite+aiosqlite:///{folder / 'sessiond.db'}",
            "ignore_eos": True,
            "max_num_seqs": others + 1,
            "turn_timeout": 0,
        }
    )
    upgrade(settings.db)
    model = pull_with_progress(settings.model, Console(quiet=True))
    notes = folder / "engine.jsonl"
    os.environ[_NOTES_FILE] = str(notes)
    engine = ToldEngine(settings.engine_config())
    drops = asyncio.run(_serve(settings, model, engine, times, others))
    freed = {
        note.session: note
        for line in reversed(notes.read_bytes().splitlines())  # the first of each session
        for note in [msgspec.json.decode(line, type=EngineNote)]
    }
    return [judge(drop, engine.told_s[drop.session], freed[drop.session]) for drop in drops]


def judge(drop: Drop, told_s: float, note: EngineNote) -> LostSocket:
    """Put together what each of them has noted of a socket."""
    ends = [ended_s for began_s, ended_s in note.steps if began_s <= drop.dropped_s < ended_s]
    step_end_s = ends[0] if ends else drop.dropped_s  # between two steps none has to be awaited
    return LostSocket(
        told=1000 * (told_s - drop.dropped_s),
        free=1000 * (note.free_s - drop.dropped_s),
        step=1000 * (step_end_s - drop.dropped_s),
        late=told_s > step_end_s,
    )


async def _serve(
    settings: Settings, model: Path, engine: WorkerEngine, times: int, others: int
) -> Sequence[Drop]:
    context = multiprocessing.get_context("spawn")
    async with own_server(settings, model, engine) as url:
        ours, theirs = context.Pipe()
        process = context.Process(target=clients, args=(url, times, others, theirs))
        process.start()
        theirs.close()  # only theirs reports the clients' end
        try:
            drops: list[Drop] = await asyncio.to_thread(ours.recv)
        finally:
            await asyncio.to_thread(process.join)
    return drops
