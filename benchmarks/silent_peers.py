"""Peers that connect and say nothing: `python -m benchmarks.silent_peers`.

A server with 64 file descriptors serves turns on one open socket, in turn with and without 500 such
peers who come again whenever they are closed. Prints the turns per second of both, their ratio and
the growth of the log.
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.load_client import LoadClient
from benchmarks.server_process import ServerProcess, running_server

_FILES = 64


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


async def silent_peer(port: int) -> None:
    """Connect, read until the server closes, and come again."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await reader.read()
            finally:
                writer.close()
        await asyncio.sleep(0.5)


async def compare(server: ServerProcess, peers: int, seconds: float, pairs: int) -> list[float]:
    """Rate with peers / rate without, once for each pair."""
    port = int(server.url.rpartition(":")[2])
    ratios = []
    async with LoadClient(server.url, temperature=0, max_output_tokens=8) as client:
        await turns_per_s(client, seconds / 2)  # warm up
        for _ in range(pairs):
            calm = await turns_per_s(client, seconds)
            crowd = [asyncio.create_task(silent_peer(port)) for _ in range(peers)]
            try:
                await asyncio.sleep(1.0)
                beside = await turns_per_s(client, seconds)
            finally:
                for one in crowd:
                    one.cancel()
                await asyncio.gather(*crowd, return_exceptions=True)
            ratios.append(beside / calm)
            Console().print(f"{calm:.1f} turns/s alone, {beside:.1f} beside {peers} silent peers")
    return ratios


def main(
    peers: Annotated[int, typer.Option(help="Silent peers.")] = 500,
    seconds: Annotated[float, typer.Option(help="Duration of each half of a pair.")] = 10.0,
    pairs: Annotated[int, typer.Option(help="Pairs.")] = 3,
) -> None:
    """Measure turns on an open socket beside peers that say nothing."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), files=_FILES) as server,
    ):
        logged, began_s = len(server.log), time.perf_counter()
        ratios = asyncio.run(compare(server, peers, seconds, pairs))
        minutes = (time.perf_counter() - began_s) / 60
        grown = (len(server.log) - logged) / minutes
    console = Console()
    console.print(
        f"ratio {statistics.median(ratios):.2f} in the median ({min(ratios):.2f} at least)"
    )
    console.print(f"the log grew by {grown / 1000:.1f} kB a minute")


if __name__ == "__main__":
    typer.run(main)
