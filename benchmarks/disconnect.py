"""How soon a lost client's KV is free: `python -m benchmarks.disconnect`.

While 31 others decode, a client drops its socket: in decode, in the prefill of a long prompt, or
queued. From then on `/health/capacity` is asked every two milliseconds, each time over another
connection: the engine answers between two steps, after all that reached it before, so the first
question behind the disconnect is answered right after the blocks are free. What is printed is
thus an upper bound by some 3 ms, beside the gap between the others' tokens at that moment.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, assert_never

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.load_client import LoadClient
from benchmarks.server_process import running_server
from benchmarks.workloads import message
from engine.files.catalog import DEFAULT_MODEL, resolve_model

Phase = Literal["decode", "prefill", "queued"]
PHASES: tuple[Phase, ...] = ("decode", "prefill", "queued")
_ASK_EVERY_S = 0.002
_GIVE_UP_S = 30.0
_CONNECTIONS = 32
_PLACES = 5  # the drops fall at these many places of a step, evenly
_ONE_STEP_S = 0.004  # what comes closer together is of the same step
_ENDLESS_TOKENS = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """One disconnect. Times from the drop of the socket, in milliseconds.

    `step_ms` is the gap between the others' tokens in which it fell, `step_end_ms` the end of it.
    """

    phase: Phase
    free_ms: float
    step_ms: float
    step_end_ms: float
    blocks_before: int
    blocks_after: int


class Crowd:
    """The others: endless streams, of which only the times of their tokens are kept."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._tasks: list[asyncio.Task[None]] = []
        self._arrived = asyncio.Event()
        self.size = 0
        self.token_times_s: list[float] = []

    @asynccontextmanager
    async def of(self, size: int, seed: str) -> AsyncIterator["Crowd"]:
        """So many streams that all decode; they are cut off at the end of the block."""
        self.size = size
        async with AsyncExitStack() as stack:
            started: list[asyncio.Event] = []
            for number in range(size):
                client = await stack.enter_async_context(LoadClient(self._url, temperature=0))
                started.append(asyncio.Event())
                text = message(seed, number, 0, 100)
                self._tasks.append(asyncio.create_task(self._stream(client, text, started[-1])))
            try:
                await asyncio.gather(*(event.wait() for event in started))
                yield self
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def steps(self, count: int) -> None:
        """Wait until some stream has brought a token so many times, with a pause between."""
        for _ in range(count):
            self._arrived.clear()
            await self._arrived.wait()
            await asyncio.sleep(_ASK_EVERY_S)  # the other streams' tokens of the same step

    def last_step(self) -> tuple[float, float]:
        """Start and end of the silence before the last tokens."""
        latest = self.token_times_s[-1]
        before = [at_s for at_s in self.token_times_s if at_s < latest - _ONE_STEP_S]
        return max(before, default=latest), latest

    def step_around(self, moment_s: float) -> tuple[float, float]:
        """Start and end of the silence that holds `moment_s`."""
        before = max(at_s for at_s in self.token_times_s if at_s <= moment_s)
        return before, min(at_s for at_s in self.token_times_s if at_s > moment_s)

    async def _stream(self, client: LoadClient, text: str, started: asyncio.Event) -> None:
        await client.send(text, max_output_tokens=_ENDLESS_TOKENS)
        while True:
            frame = await client.socket.recv()
            if '"response.output_text.delta"' in str(frame):
                self.token_times_s.append(time.perf_counter())
                self._arrived.set()
                started.set()


class CapacityPoll:
    """Asks for the capacity, every question over a connection that `open` has opened before."""

    def __init__(self, url: str) -> None:
        self._host, self._port = url.removeprefix("http://").split(":")
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open(self, connections: int) -> None:
        """Open so many: those that have been idle for seconds may be closed by the server."""
        self.close()
        to = asyncio.open_connection
        self._idle = [await to(self._host, int(self._port)) for _ in range(connections)]

    async def ask(self) -> tuple[float, dict[str, Any]]:
        """The answer, and when it came."""
        if not self._idle:
            self._idle.append(await asyncio.open_connection(self._host, int(self._port)))
        reader, writer = self._idle.pop()
        writer.write(f"GET /health/capacity HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        answer: dict[str, Any] = json.loads(await reader.readexactly(length))
        self._idle.append((reader, writer))
        return time.perf_counter(), answer

    async def first(self, wanted: dict[str, int]) -> tuple[float, dict[str, Any]]:
        """The first answer in which each of `wanted` has its value, and when it came.

        Raises:
            TimeoutError: there is none.
        """
        pending: set[asyncio.Task[tuple[float, dict[str, Any]]]] = set()
        async with asyncio.timeout(_GIVE_UP_S):
            while True:
                pending.add(asyncio.create_task(self.ask()))
                done, pending = await asyncio.wait(pending, timeout=_ASK_EVERY_S)
                fitting = [
                    task.result() for task in done if wanted.items() <= task.result()[1].items()
                ]
                if fitting:
                    await asyncio.gather(*pending)
                    return min(fitting, key=lambda found: found[0])
                if done:  # asked at once: the pace is kept by the timeout
                    await asyncio.sleep(_ASK_EVERY_S)

    def close(self) -> None:
        """Close the connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle = []


async def measure(url: str, phase: Phase, times: int, others: int) -> list[Reclaim]:
    """Drop `times` clients in `phase`. The server has one running slot more than `others`."""
    poll = CapacityPoll(url)
    try:
        async with Crowd(url).of(others + (phase == "queued"), phase) as crowd:
            return [await _drop(url, phase, number, crowd, poll) for number in range(times)]
    finally:
        await poll.open(1)
        await poll.first({"running": 0, "waiting": 0})
        poll.close()


async def _drop(url: str, phase: Phase, number: int, crowd: Crowd, poll: CapacityPoll) -> Reclaim:
    async with LoadClient(url, temperature=0) as client:
        await poll.open(_CONNECTIONS)
        await _bring_to(client, phase, number, crowd)
        _, before = await poll.ask()
        await crowd.steps(1)
        start_s, end_s = crowd.last_step()
        await asyncio.sleep((end_s - start_s) * (number % _PLACES) / _PLACES)
        dropped_s = time.perf_counter()
        client.socket.transport.abort()
        free_s, after = await poll.first({"running": crowd.size, "waiting": 0})
    await crowd.steps(2)
    start_s, end_s = crowd.step_around(dropped_s)
    return Reclaim(
        phase=phase,
        free_ms=1e3 * (free_s - dropped_s),
        step_ms=1e3 * (end_s - start_s),
        step_end_ms=1e3 * (end_s - dropped_s),
        blocks_before=before["active_blocks"],
        blocks_after=after["active_blocks"],
    )


async def _bring_to(client: LoadClient, phase: Phase, number: int, crowd: Crowd) -> None:
    match phase:
        case "decode":
            await client.send(message(phase, number, 1, 500), max_output_tokens=1000)
            await _until(client, "response.output_text.delta")
        case "prefill":
            await client.send(message(phase, number, 1, 6000), max_output_tokens=1000)
            await _until(client, "response.in_progress")
            await crowd.steps(1)
        case "queued":
            await client.send(message(phase, number, 1, 500), max_output_tokens=1000)
            await _until(client, "response.queued")
        case _:
            assert_never(phase)


async def _until(client: LoadClient, kind: str) -> None:
    while json.loads(await client.socket.recv())["type"] != kind:
        pass


def _table(reclaims: Sequence[Reclaim], others: int) -> Table:
    table = Table(
        "milliseconds, median (longest)", *PHASES,
        title=f"A client leaves while {others} others decode",
    )  # fmt: skip
    rows = [[row for row in reclaims if row.phase == phase] for phase in PHASES]
    for name, value in _MEASURES.items():
        numbers = [[value(row) for row in of_phase] for of_phase in rows]
        table.add_row(name, *(f"{statistics.median(one):.1f} ({max(one):.1f})" for one in numbers))
    table.add_row("times", *(str(len(of_phase)) for of_phase in rows))
    return table


_MEASURES: Mapping[str, Callable[[Reclaim], float]] = {
    "from the drop to free": lambda row: row.free_ms,
    "the others' step in which it fell": lambda row: row.step_ms,
    "from that step's first token to free": lambda row: row.free_ms - row.step_end_ms,
    "blocks given back (not ms)": lambda row: row.blocks_before - row.blocks_after,
}


def main(
    times: Annotated[int, typer.Option(min=1, help="Disconnects per phase.")] = 10,
    others: Annotated[int, typer.Option(min=1, help="Streams that decode meanwhile.")] = 31,
) -> None:
    """Start a server and streams; drop one more client again and again."""
    resolve_model(DEFAULT_MODEL)
    flags = ["--ignore-eos", "--max-num-seqs", str(others + 1), "--turn-timeout", "0"]
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder), flags) as server:
        reclaims = [
            row
            for phase in PHASES
            for row in asyncio.run(measure(server.url, phase, times, others))
        ]
    Console().print(_table(reclaims, others))


if __name__ == "__main__":
    typer.run(main)
