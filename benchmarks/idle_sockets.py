"""What an idle socket costs the gateway: `python -m benchmarks.idle_sockets --count 2000`.

The server is a process of its own, so is its engine: what grows is the gateway, by its sockets
alone. What the kernel holds for them is in no process's memory and not counted.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.many_sockets import FewFilesError, SmallSocket, allow_files, open_many
from benchmarks.process_memory import KIB, rss_bytes
from benchmarks.server_process import ServerProcess, running_server
from engine.files.catalog import DEFAULT_MODEL, resolve_model
from sessiond.cli.server_api import ServerAddress

_WARM_UP = 64  # loads what is loaded late, and grows what grows once
_WRONG_FRAME = "{}"  # answered by an error, at no cost to the engine
_AT_ONCE = 64
_GONE_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSockets:
    """The gateway's RSS in bytes.

    Without sockets, with all idle, after one frame each, when all have left, and when as many came
    again: they take the room of those before them, which the heap keeps.
    """

    count: int
    base: int
    idle: int
    spoken: int
    left: int
    again: int

    @property
    def idle_kib(self) -> float:
        """KiB per socket that was opened and did nothing."""
        return (self.idle - self.base) / self.count / KIB

    @property
    def spoken_kib(self) -> float:
        """KiB per socket that has sent a frame and had an answer, and is idle again."""
        return (self.spoken - self.base) / self.count / KIB

    @property
    def again_kib(self) -> float:
        """KiB per idle socket when as many had been there before."""
        return (self.again - self.base) / self.count / KIB


async def measure(server: ServerProcess, count: int) -> IdleSockets:
    """Open so many sockets, let each say something, leave.

    Raises:
        FewFilesError: the system allows this process too few open files.
        RuntimeError: a socket was not let in, or not kept.
    """
    allow_files(count)
    url = ServerAddress.parse(server.url).socket
    pid = server.process.pid
    for _ in range(2):
        await _leave(server, await _speak(await open_many(url, _WARM_UP)))
    base = rss_bytes(pid)
    sockets = await open_many(url, count)
    idle = rss_bytes(pid)
    await _speak(sockets)
    spoken = rss_bytes(pid)
    if not all(one.is_open for one in sockets):
        raise RuntimeError("the server closed sockets that were idle")
    await _leave(server, sockets)
    left = rss_bytes(pid)
    sockets = await open_many(url, count)
    again = rss_bytes(pid)
    await _leave(server, sockets)
    return IdleSockets(count=count, base=base, idle=idle, spoken=spoken, left=left, again=again)


async def _speak(sockets: Sequence[SmallSocket]) -> Sequence[SmallSocket]:
    for first in range(0, len(sockets), _AT_ONCE):
        batch = sockets[first : first + _AT_ONCE]
        for one in batch:
            one.send_text(_WRONG_FRAME)
        for one in batch:
            await one.heard()
    return sockets


async def _leave(server: ServerProcess, sockets: Sequence[SmallSocket]) -> None:
    for one in sockets:
        one.abort()
    async with asyncio.timeout(_GONE_WITHIN_S):
        while open_sockets(server):  # noqa: ASYNC110 -- another process counts
            await asyncio.sleep(0.02)


def open_sockets(server: ServerProcess) -> int:
    """How many sockets the server counts."""
    name = "sessiond_websocket_connections "
    lines = server.get_text("/metrics").splitlines()
    return int(float(next(line for line in lines if line.startswith(name)).removeprefix(name)))


def _table(found: IdleSockets) -> Table:
    table = Table("the gateway's memory", "MiB", "KiB per socket", title=f"{found.count} sockets")
    table.add_row("before", f"{found.base / KIB**2:.1f}", "")
    table.add_row("idle", f"{found.idle / KIB**2:.1f}", f"{found.idle_kib:.1f}")
    table.add_row(
        "idle after a frame each", f"{found.spoken / KIB**2:.1f}", f"{found.spoken_kib:.1f}"
    )
    table.add_row("all have left", f"{found.left / KIB**2:.1f}", "")
    table.add_row("as many came again", f"{found.again / KIB**2:.1f}", f"{found.again_kib:.1f}")
    return table


def main(
    count: Annotated[int, typer.Option(min=1, help="Sockets.")] = 2000,
) -> None:
    """Start a server, open sockets, tell what the gateway holds for each."""
    resolve_model(DEFAULT_MODEL)
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as server:
        try:
            found = asyncio.run(measure(server, count))
        except FewFilesError as error:
            sys.exit(str(error))
    Console().print(_table(found))


if __name__ == "__main__":
    typer.run(main)
