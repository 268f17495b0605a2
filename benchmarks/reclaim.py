"""How fast memory comes back: `python -m benchmarks.reclaim`.

Two tables, each at idle and at full load:

(a) the release inside the engine: how long its thread takes to give back all blocks of a session,
    by the number of tokens that it holds, when the client has gone in its reply (`disconnect`) or
    at rest (`release`). The engine's own loop, pool, prefix cache and a tier, without the model's
    arithmetic: it has no part in it. Full load: 31 others decode, and a thousand sessions of the
    same user are idle.
(b) from the drop of a client's socket to its blocks being free, on a server of the default model,
    alone and while 31 others decode, as `benchmarks.disconnect` measures it, less the rest of the
    step that runs at that moment: so this is what is added to the step in flight.
"""

import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.disconnect import Reclaim, measure
from benchmarks.machine import describe_machine
from benchmarks.server_process import running_server
from engine.config import EngineConfig
from engine.files.catalog import DEFAULT_MODEL, resolve_model
from engine.ids import BlockId, SessionId, TurnId
from engine.loop import EngineLoop
from engine.messages import (
    CancelTurn,
    CloseContext,
    Command,
    ReleaseContext,
    Sampling,
    SetContext,
    SubmitTurn,
)
from engine.step import SequenceStep
from engine.tiers.host import HostStore
from engine.tiers.index import SlotIndex
from engine.tiers.mover import ThreadMover
from engine.tiers.store import Bytes
from engine.tiers.tiers import Rates, Tier, Tiers

TOKENS = (512, 2048, 8192)
WAYS = ("disconnect", "release")
_BLOCKS = 65536
_BLOCK_BYTES = 64
_OTHERS = 31
_IDLE_SESSIONS = 1000
_VOCABULARY = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of one row: `unit` each."""

    name: str
    load: str
    unit: str
    times: int
    p50: float
    p99: float
    most: float


def spread(name: str, load: str, unit: str, values: Sequence[float]) -> Spread:
    """Median, 99th percentile (a value that was measured) and the most."""
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99)]
    return Spread(
        name=name, load=load, unit=unit, times=len(ordered), p50=at[0], p99=at[1], most=ordered[-1]
    )


# --- inside the engine ---------------------------------------------------------------------------


class NoModel:
    """Draws the same token for ever; its blocks are nothing but bytes for the tier."""

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        """See `ModelRunner`."""
        return [65 for step in batch if step.sample is not None for _ in step.sample.each]

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        """See `ModelRunner`."""

    def zero_block(self, block: BlockId) -> None:
        """See `ModelRunner`."""

    def read_block(self, block: int, into: Bytes) -> None:  # noqa: ARG002 -- all are alike
        """See `Blocks`."""
        into[:] = 0

    def write_block(self, block: int, data: Bytes) -> None:
        """See `Blocks`."""


class NoText:
    """Tokens without text."""

    def token_bytes(self, token_id: int) -> bytes:
        """See `TokenText`."""
        return b"" if token_id < 0 else b"x"

    def encode(self, text: str) -> list[int]:
        """See `TokenText`."""
        return [65] * len(text)


class Bench:
    """A loop with what is done to it."""

    def __init__(self, load: bool, clock: Callable[[], float]) -> None:
        self._clock = clock
        config = EngineConfig(
            model="none",
            max_num_batched_tokens=2048,
            max_num_seqs=_OTHERS + 1,
            num_speculative_tokens=0,
            target_inter_token_ms=0,
        )
        model = NoModel()
        store = HostStore(_BLOCKS, _BLOCK_BYTES)
        tier = Tier(
            name="host",
            store=store,
            index=SlotIndex(_BLOCKS),
            slot_bytes=_BLOCK_BYTES,
            rates=Rates(read=1e12, write=1e12),
        )
        self._loop = EngineLoop(
            config=config,
            num_blocks=_BLOCKS,
            kv_bytes_per_block=_BLOCK_BYTES,
            max_model_len=100_000,
            fingerprint="none",
            runner=model,
            tiers=Tiers([tier], device=model, block_bytes=_BLOCK_BYTES, mover=ThreadMover()),
            tokenizer=NoText(),
            emit=lambda _: None,
            clock=time.perf_counter,
        )
        self._dice = np.random.default_rng(1)
        self._names = count(1)
        if load:
            for _ in range(_IDLE_SESSIONS):
                self._reply(self._open(), 200, 1)
                self._run()
            for _ in range(_OTHERS):
                self._reply(self._open(), 1000, 90_000)

    def release_us(self, way: str, tokens: int) -> float:
        """Open a session that holds so many tokens, and take the time of its end."""
        session = self._open()
        turn = self._reply(session, tokens - 8, 100 if way == "disconnect" else 1)
        for _ in range(tokens // 2048 + 8):
            self._loop.step()
        commands: list[Command] = [ReleaseContext(session=session)]
        if way == "disconnect":
            commands.insert(0, CancelTurn(turn=turn, keep=False, reason="disconnected"))
        started_s = self._clock()
        for command in commands:
            self._loop.handle(command)
        took_us = 1e6 * (self._clock() - started_s)
        self._loop.handle(CloseContext(session=session))
        for _ in range(3):
            self._loop.step()
        return took_us

    def close(self) -> None:
        """End the tier's threads."""
        self._loop.close()

    def _open(self) -> SessionId:
        session = SessionId(f"s{next(self._names)}")
        self._loop.handle(SetContext(session=session, salt=b"user", ids=[], computed=0))
        return session

    def _reply(self, session: SessionId, tokens: int, reply: int) -> TurnId:
        turn = TurnId(f"t{next(self._names)}")
        ids: list[int] = self._dice.integers(0, _VOCABULARY, tokens).tolist()
        self._loop.handle(
            SubmitTurn(
                turn=turn,
                session=session,
                ids=ids,
                close_ids=[],
                stop_ids=[],
                sampling=Sampling(temperature=0),
                max_output_tokens=reply,
            )
        )
        return turn

    def _run(self) -> None:
        while self._loop.has_work:
            self._loop.step()


def in_engine(
    load: bool, times: int, clock: Callable[[], float], tokens: Sequence[int] = TOKENS
) -> list[Spread]:
    """Table (a)."""
    bench = Bench(load, clock)
    rows = []
    try:
        for way in WAYS:
            for size in tokens:
                bench.release_us(way, size)  # the first one finds cold caches
                gc.collect()
                values = [bench.release_us(way, size) for _ in range(times)]
                name = f"{way}, {size} tokens"
                rows.append(spread(name, _load_name(load), "us", values))
    finally:
        bench.close()
    return rows


# --- from the socket -----------------------------------------------------------------------------


def from_socket(times: int, others: int) -> list[Spread]:
    """Table (b)."""
    flags = ["--ignore-eos", "--max-num-seqs", str(others + 2), "--turn-timeout", "0"]
    rows = []
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder), flags) as server:
        for crowd in (1, others):
            reclaims = asyncio.run(measure(server.url, "decode", times, crowd))
            load = "idle but for one stream" if crowd == 1 else f"{crowd} streams"
            measures: dict[str, Callable[[Reclaim], float]] = {
                "disconnect to free": lambda row: row.free_ms,
                "the step in flight": lambda row: max(0.0, row.step_end_ms),
                "what is added to it": lambda row: row.free_ms - max(0.0, row.step_end_ms),
            }
            rows += [
                spread(name, load, "ms", [value(row) for row in reclaims])
                for name, value in measures.items()
            ]
    return rows


def _load_name(load: bool) -> str:
    return "full load" if load else "idle"


def show(rows: Sequence[Spread], title: str) -> Table:
    """One table."""
    table = Table("", "load", "unit", "times", "p50", "p99", "max", title=title)
    for row in rows:
        numbers = (f"{value:,.1f}" for value in (row.p50, row.p99, row.most))
        table.add_row(row.name, row.load, row.unit, str(row.times), *numbers)
    return table


def main(
    times: Annotated[int, typer.Option(min=1, help="Releases per row of (a).")] = 500,
    drops: Annotated[int, typer.Option(min=0, help="Disconnects per row of (b); 0: none.")] = 50,
    others: Annotated[int, typer.Option(min=1, help="Streams at full load.")] = _OTHERS,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="For (a): of the thread, for a machine in use.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Where the figures go, as JSON.")] = None,
) -> None:
    """Measure both, print the tables."""
    console = Console()
    console.print(describe_machine())
    clock = time.thread_time if cpu_time else time.perf_counter
    inside = [*in_engine(False, times, clock), *in_engine(True, times, clock)]
    console.print(show(inside, "(a) Release inside the engine"))
    outside: list[Spread] = []
    if drops:
        resolve_model(DEFAULT_MODEL)
        outside = from_socket(drops, others)
        console.print(show(outside, "(b) From a lost socket to free blocks"))
    if output is not None:
        result: dict[str, Any] = {"machine": describe_machine()}
        result["rows"] = [asdict(row) for row in [*inside, *outside]]
        output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
