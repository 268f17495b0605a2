"""How fast memory comes back: `python -m benchmarks.reclaim`.

Two tables, each at idle and at full load:

(a) the release inside the engine: how long after the command its thread has freed all blocks
    of a session (`until free`), and has noted all that goes with it (`in all`), by the number of
    tokens that it holds, when the client has gone in its reply (`disconnect`) or at rest
    (`release`). The engine's own loop, pool, prefix cache and a tier, without the model's
    arithmetic: it has no part in it. Full load: 31 others decode, and a thousand sessions of the
    same user are idle.
(b) from the drop of a client's socket to its blocks being free, on a server of the default model,
    beside one other stream and beside 31: by the clocks of client, gateway and engine
    (`benchmarks.lost_sockets`). A step can't be stopped; a socket lost so shortly before its end
    that the engine hears of it afterwards waits for the next one. `added` counts that.
"""

import gc
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.lost_sockets import lost_sockets
from benchmarks.machine import describe_machine
from engine.config import EngineConfig
from engine.core.loop import EngineLoop
from engine.ids import BlockId, SessionId, TurnId
from engine.ipc.messages import (
    CancelTurn,
    CloseContext,
    Command,
    ReleaseContext,
    Sampling,
    SetContext,
    SubmitTurn,
)
from engine.kv.step import SequenceStep
from engine.kv.tiers.host import HostStore
from engine.kv.tiers.index import SlotIndex
from engine.kv.tiers.mover import ThreadMover
from engine.kv.tiers.store import Bytes
from engine.kv.tiers.tiers import Rates, Tier, Tiers
from engine.system.heap import ShortPauses

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
        return [65 for step in batch for _ in step.samples]

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
        pool = self._loop._memory.pool  # noqa: SLF001 -- tells nobody when it has got blocks
        self._give, self._given_s = pool.free, 0.0
        pool.free = self._note_give  # type: ignore[method-assign]
        self._dice = np.random.default_rng(1)
        self._names = count(1)
        if load:
            for _ in range(_IDLE_SESSIONS):
                self._reply(self._open(), 200, 1)
                self._run()
            for _ in range(_OTHERS):
                self._reply(self._open(), 1000, 90_000)
            for _ in range(_OTHERS):  # more than their prompts take
                self._loop.step()

    def release_us(self, way: str, tokens: int) -> tuple[float, float]:
        """Open a session that holds so many tokens, and end it.

        Returns:
            After how long all its blocks were free, and after how long all was done.
        """
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
        done_s, given_s = self._clock(), self._given_s
        if given_s < started_s:
            raise RuntimeError("the pool is full: the session had lost its blocks before")
        self._loop.handle(CloseContext(session=session))
        for _ in range(3):
            self._loop.step()
        return 1e6 * (given_s - started_s), 1e6 * (done_s - started_s)

    def close(self) -> None:
        """End the tier's threads."""
        self._loop.close()

    def _note_give(self, blocks: Sequence[int]) -> None:
        self._give(blocks)
        if len(blocks):
            self._given_s = self._clock()

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
    rows = []
    for way, size in product(WAYS, tokens):
        bench = Bench(load, clock)  # a new one: the others' replies fill the pool
        try:
            bench.release_us(way, size)  # the first one finds cold caches
            gc.collect()
            took = [bench.release_us(way, size) for _ in range(times)]
        finally:
            bench.close()
        free, done = zip(*took, strict=True)
        for what, values in (("until free", free), ("in all", done)):
            rows.append(spread(f"{way}, {size}, {what}", _load_name(load), "us", values))
    return rows


# --- from the socket -----------------------------------------------------------------------------


def from_socket(times: int, others: int) -> list[Spread]:
    """Table (b)."""
    rows = []
    for crowd in (1, others):
        with tempfile.TemporaryDirectory() as folder:
            found = lost_sockets(Path(folder), times, crowd)
        load = "beside one stream" if crowd == 1 else f"beside {crowd} streams"
        in_time = [one.added for one in found if not one.late]
        measures = {
            "drop to free": [one.free for one in found],
            "drop to the end of its step": [one.step for one in found],
            "drop to the engine being told": [one.told for one in found],
            "added to the step": [one.added for one in found],
            "added if told within the step": in_time,
        }
        rows += [spread(name, load, "ms", values) for name, values in measures.items() if values]
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
    ShortPauses().begin()  # as the engine's process does
    clock = time.thread_time if cpu_time else time.perf_counter
    inside = [*in_engine(False, times, clock), *in_engine(True, times, clock)]
    console.print(show(inside, "(a) Release inside the engine"))
    outside: list[Spread] = []
    if drops:
        outside = from_socket(drops, others)
        console.print(show(outside, "(b) From a lost socket to free blocks"))
    if output is not None:
        result: dict[str, Any] = {"machine": describe_machine()}
        result["rows"] = [asdict(row) for row in [*inside, *outside]]
        output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
