"""Clients that come and go at once: `python -m benchmarks.connect_storm --count 5000`.

Each opens a socket, says something, hears the answer and leaves, half of them without a word.
Meanwhile one conversation goes on.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.idle_sockets import open_sockets
from benchmarks.load_client import LoadClient
from benchmarks.many_sockets import FewFilesError, SmallSocket, allow_files, open_one
from benchmarks.process_memory import KIB, rss_bytes
from benchmarks.server_process import ServerProcess, running_server
from engine.files.catalog import DEFAULT_MODEL, resolve_model
from sessiond.cli.server_api import ServerAddress

_WRONG_FRAME = "{}"
_GONE_WITHIN_S = 60.0
_WARM_UP = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """What came of it. `opened_s`: how long each waited to be let in; files and RSS: the gateway's.

    `turns`: replies that the conversation beside it had, `cut` those that did not end well.
    """

    took_s: float
    opened_s: Sequence[float]
    refused: int
    unanswered: int
    turns: int
    cut: int
    files_before: int
    files_after: int
    rss_before: int
    rss_after: int


async def storm(server: ServerProcess, count: int, per_minute: float) -> Storm:
    """Let so many come at that rate.

    Raises:
        FewFilesError: the system allows this process too few open files.
        OSError: the server took no connection.
    """
    allow_files(count)
    async with LoadClient(server.url, max_output_tokens=16) as client:
        await client.ask("Say one word.")
        await _come_and_go(server, _WARM_UP, per_minute)
    await _nobody(server)
    files, rss = _open_files(server), rss_bytes(server.process.pid)
    stop = asyncio.Event()
    async with LoadClient(server.url, max_output_tokens=16) as client:
        beside = asyncio.create_task(_converse(client, stop))
        begun_s = time.perf_counter()
        visits = await _come_and_go(server, count, per_minute)
        took_s = time.perf_counter() - begun_s
        stop.set()
        ended_well = await beside
    await _nobody(server)
    return Storm(
        took_s=took_s,
        opened_s=[one.opened_after_s for one in visits if one.status == 101],
        refused=sum(one.status != 101 for one in visits),
        unanswered=sum(one.messages == 0 for one in visits),
        turns=len(ended_well),
        cut=ended_well.count(False),
        files_before=files,
        files_after=_open_files(server),
        rss_before=rss,
        rss_after=rss_bytes(server.process.pid),
    )


async def _come_and_go(
    server: ServerProcess, count: int, per_minute: float
) -> Sequence[SmallSocket]:
    url = ServerAddress.parse(server.url).socket
    begun_s = time.perf_counter()

    async def visit(number: int) -> SmallSocket:
        await asyncio.sleep(begun_s + 60 * number / per_minute - time.perf_counter())
        one = await open_one(url)
        if one.is_open:
            one.send_text(_WRONG_FRAME)
            await one.heard()
        if number % 2:
            one.abort()
        else:
            one.leave()
        return one

    visits = await asyncio.gather(*map(visit, range(count)))
    await _nobody(server, but=1)
    return visits


async def _converse(client: LoadClient, stop: asyncio.Event) -> Sequence[bool]:
    """Whether each turn ended well."""
    ended_well = []
    while not stop.is_set():
        end = (await client.ask("Say one word.")).end
        ended_well.append(end is not None and end.outcome in {"completed", "incomplete"})
    return ended_well


async def _nobody(server: ServerProcess, but: int = 0) -> None:
    async with asyncio.timeout(_GONE_WITHIN_S):
        while open_sockets(server) > but:  # noqa: ASYNC110 -- another process counts
            await asyncio.sleep(0.02)


def _open_files(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def _table(found: Storm, count: int) -> Table:
    table = Table("what", "value", title=f"{count} clients in {found.took_s:.1f} s")
    waited = sorted(found.opened_s)
    table.add_row("per minute", f"{60 * count / found.took_s:.0f}")
    table.add_row("let in after, ms: median", f"{1e3 * statistics.median(waited):.1f}")
    table.add_row("p99", f"{1e3 * waited[int(0.99 * (len(waited) - 1))]:.1f}")
    table.add_row("longest", f"{1e3 * waited[-1]:.1f}")
    table.add_row("refused or unanswered", str(found.refused + found.unanswered))
    table.add_row("turns beside it, cut", f"{found.turns}, {found.cut}")
    table.add_row("the gateway's files", f"{found.files_before} -> {found.files_after}")
    mib = KIB**2
    table.add_row("its MiB", f"{found.rss_before / mib:.1f} -> {found.rss_after / mib:.1f}")
    return table


def main(
    count: Annotated[int, typer.Option(min=1, help="Clients.")] = 5000,
    per_minute: Annotated[float, typer.Option(min=1, help="How many come in a minute.")] = 5000,
) -> None:
    """Start a server and let clients come and go."""
    resolve_model(DEFAULT_MODEL)
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as server:
        try:
            found = asyncio.run(storm(server, count, per_minute))
        except FewFilesError as error:
            sys.exit(str(error))
    Console().print(_table(found, count))


if __name__ == "__main__":
    typer.run(main)
