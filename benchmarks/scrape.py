"""What a scrape costs when the engine has many sessions: `python -m benchmarks.scrape`.

Sessions of one short message each are opened through one socket, which keeps them. Before the first
and after the last, `/metrics` is asked many times over one connection, as Prometheus does; what is
timed goes from the request to the last byte. `GET /v1/sessions`, a page of 100, is timed beside it.
"""

import asyncio
import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.server_process import running_server

_LANES = 32
_IN_FLIGHT = 64
_ENDINGS = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_BLOCKS_EACH = 2
_BLOCK_BYTES = 400 * 1024  # of the default model, more or less: room for all, so that none is cold


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Milliseconds of one kind of request, and the size of its answer."""

    what: str
    sessions: int
    median_ms: float
    p99_ms: float
    max_ms: float
    answer_bytes: int


async def open_sessions(url: str, count: int) -> ClientConnection:
    """Open so many sessions with KV on the device. Returns the socket that keeps them."""
    ws = await connect(url, proxy=None, compression=None)
    places = asyncio.Semaphore(_IN_FLIGHT)

    async def hear() -> None:
        left = count
        while left:
            event = json.loads(await ws.recv())
            if event["type"] in _ENDINGS:
                if event["type"] != "response.completed":
                    raise RuntimeError(f"a session could not be opened: {event}")
                left -= 1
                places.release()

    hearing = asyncio.create_task(hear())
    for number in range(count):
        await places.acquire()
        frame = {"input": f"Remember the number {number}.", "generate": False}
        lane = {"type": "response.create", "stream_id": f"lane{number % _LANES}"}
        await ws.send(json.dumps({**lane, **frame}))
        if hearing.done():
            break
    await hearing
    return ws


def time_requests(url: str, path: str, sessions: int, repeat: int) -> Cost:
    """Ask one path again and again over one connection."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    times, size = [], 0
    for _ in range(repeat):
        began_s = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        size = len(answer.read())
        times.append(1000 * (time.perf_counter() - began_s))
        if answer.status != http.client.OK:
            raise RuntimeError(f"GET {path} answered {answer.status}")
    connection.close()
    return _cost(path, sessions, times, size)


def _cost(path: str, sessions: int, times: Sequence[float], size: int) -> Cost:
    ordered = sorted(times)
    return Cost(
        what=f"GET {path}",
        sessions=sessions,
        median_ms=round(statistics.median(ordered), 2),
        p99_ms=round(ordered[int(0.99 * (len(ordered) - 1))], 2),
        max_ms=round(ordered[-1], 2),
        answer_bytes=size,
    )


async def measure(sessions: int, repeat: int) -> list[Cost]:
    """Time a server without sessions, then one with all of them."""
    pool_bytes = (sessions * _BLOCKS_EACH + 256) * _BLOCK_BYTES
    flags = ["--kv-cache-memory", str(pool_bytes)]
    paths = ["/metrics", "/v1/sessions?limit=100"]
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder), flags) as server:
        costs = [time_requests(server.url, path, 0, repeat) for path in paths]
        ws = await open_sessions(f"ws{server.url.removeprefix('http')}/v1/responses", sessions)
        there = server.get("/health/capacity")["sessions"]["live"]
        costs += [time_requests(server.url, path, there, repeat) for path in paths]
        await ws.close()
    return costs


def main(
    sessions: Annotated[int, typer.Option(help="How many.")] = 10_000,
    repeat: Annotated[int, typer.Option(help="Requests of each kind.")] = 200,
    results: Annotated[Path | None, typer.Option(help="Where to write the figures.")] = None,
) -> None:
    """Time scrapes of a server with many sessions."""
    costs = asyncio.run(measure(sessions, repeat))
    table = Table("request", "sessions", "median ms", "p99 ms", "max ms", "bytes")
    for cost in costs:
        table.add_row(*map(str, asdict(cost).values()))
    Console().print(table)
    if results is not None:
        results.write_text(json.dumps([asdict(cost) for cost in costs], indent=2))


if __name__ == "__main__":
    typer.run(main)
