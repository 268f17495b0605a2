"""Peers that connect and say nothing: `python -m benchmarks.silent_peers`.

A server with 64 file descriptors serves turns on one open socket: alone, beside 500 such peers, and
beside 500 who come again half a second after they are closed. The peers are a process of their own:
in the client's they would slow the client down. Prints the turns per second, their ratios and the
growth of the log.
"""

import asyncio
import contextlib
import math
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.load_client import LoadClient
from benchmarks.server_process import ServerProcess, running_server

_FILES = 64
_KINDS = {"stay": math.inf, "come again": 0.5}  # seconds until a peer that was closed comes again
_ARRIVAL_S = 3.0


async def turns_per_s(client: LoadClient, seconds: float) -> float:
    """Turns of a few tokens, one after another."""
    turns, began_s = 0, time.perf_counter()
    while (took_s := time.perf_counter() - began_s) < seconds:
        client.tip = None  # a conversation of its own, so that each costs the same
        turn = await client.ask("Name a fish.")
        if turn.end is None or turn.end.outcome == "cut":
            raise RuntimeError("the open socket was lost")
        turns += 1
    return turns / took_s


async def silent_peer(port: int, again_s: float) -> None:
    """Connect, read until the server closes, and come again after `again_s`."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await reader.read()
            finally:
                writer.close()
        if math.isinf(again_s):
            return
        await asyncio.sleep(again_s)


def crowd(port: int, peers: int, again_s: float) -> None:
    """Keep so many silent peers until the process is ended."""

    async def stay() -> None:
        await asyncio.gather(*(silent_peer(port, again_s) for _ in range(peers)))
        await asyncio.Event().wait()

    asyncio.run(stay())


@contextlib.contextmanager
def beside(port: int, peers: int, again_s: float) -> Iterator[None]:
    """A process of silent peers until the block ends."""
    process = multiprocessing.get_context("spawn").Process(
        target=crowd, args=(port, peers, again_s)
    )
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


async def compare(
    server: ServerProcess, peers: int, seconds: float, rounds: int
) -> dict[str, list[float]]:
    """Rate beside peers / rate alone, by the kind of peers, once for each round."""
    port = int(server.url.rpartition(":")[2])
    ratios: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    async with LoadClient(server.url, temperature=0, max_output_tokens=8) as client:
        await turns_per_s(client, seconds / 2)  # warm up
        for _ in range(rounds):
            alone = await turns_per_s(client, seconds)
            for kind, again_s in _KINDS.items():
                with beside(port, peers, again_s):
                    await asyncio.sleep(_ARRIVAL_S)
                    rate = await turns_per_s(client, seconds)
                ratios[kind].append(rate / alone)
                Console().print(f"{alone:.1f} turns/s alone, {rate:.1f} beside {peers} who {kind}")
    return ratios


def main(
    peers: Annotated[int, typer.Option(help="Silent peers.")] = 500,
    seconds: Annotated[float, typer.Option(help="Duration of each part of a round.")] = 10.0,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 3,
) -> None:
    """Measure turns on an open socket beside peers that say nothing."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), files=_FILES) as server,
    ):
        logged, began_s = len(server.log), time.perf_counter()
        ratios = asyncio.run(compare(server, peers, seconds, rounds))
        minutes = (time.perf_counter() - began_s) / 60
        grown = (len(server.log) - logged) / minutes
    console = Console()
    for kind, found in ratios.items():
        console.print(
            f"peers who {kind}: ratio {statistics.median(found):.2f} in the median "
            f"({min(found):.2f} at least)"
        )
    console.print(f"the log grew by {grown / 1000:.1f} kB a minute")


if __name__ == "__main__":
    typer.run(main)
