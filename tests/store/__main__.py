"""What the store's transactions take beside few and many sessions: `python -m tests.store`.

Processor time of the process, SQLite's threads included: a busy machine does not change it much.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sessiond.store import migrate
from sessiond.store.records import NewReservation, SessionChoice
from sessiond.store.store import Store
from tests.databases import sqlite_url
from tests.store import crowd, rows

_NOW = 5e9
_RESERVED = NewReservation(turn_id="", tokens=5, now=_NOW, expires_at=1e13)

Step = Callable[[int], Awaitable[object]]


def steps(store: Store) -> dict[str, Step]:
    """A turn from its session's opening to its closing, and what is done now and then."""

    async def opens(number: int) -> None:
        name = f"own_{number}"
        turn = rows.turn(f"resp_{name}", user_id=crowd.USER, session_id=name)
        await store.begin_turn(
            replace(turn, prompt_id=f"front_{name}"),
            session=replace(rows.session(name, crowd.USER), prompt_id=f"front_{name}"),
            prompt=rows.prompt(f"front_{name}"),
            reservation=replace(_RESERVED, turn_id=turn.id),
        )

    async def keeps(number: int) -> None:
        name = f"own_{number}"
        kept = rows.kept(f"resp_{name}", user_id=crowd.USER, session_id=name)
        await store.commit_turn(replace(kept, prompt_id=f"front_{name}"))

    async def goes_on(number: int) -> None:
        name = f"own_{number}"
        turn = rows.turn(f"more_{name}", f"resp_{name}", user_id=crowd.USER, session_id=name)
        reservation = replace(_RESERVED, turn_id=turn.id)
        turn = replace(turn, prompt_id=f"front_{name}")
        await store.begin_turn(turn, session=None, prompt=None, reservation=reservation)

    return {
        "commit 1, opens a session": opens,
        "commit 2": keeps,
        "commit 1, goes on": goes_on,
        "limits": lambda _: store.quotas.standing(crowd.USER),
        "close": lambda number: store.close_session(crowd.USER, f"own_{number}", _NOW),
        "abandoned": lambda _: store.abandoned_sessions(5.0, 100),
        "list of one user": lambda _: store.list_sessions(
            SessionChoice(user_id=crowd.USER), limit=20, after=None
        ),
        "list of all": lambda _: store.list_sessions(
            SessionChoice(user_id=None), limit=20, after=None
        ),
        "heartbeat": lambda _: store.membership.renew(_NOW, 1e13),
        "reservations": lambda _: store.quotas.reap_reservations(_NOW),
    }


async def measure(url: str, times: int) -> dict[str, float]:
    """Medians, in milliseconds."""
    store = Store(url)
    await store.membership.register(_NOW, 1e13)
    medians = {}
    for name, step in steps(store).items():
        taken = []
        for number in range(times):
            began_s = time.process_time()
            await step(number)
            taken.append(1000 * (time.process_time() - began_s))
        medians[name] = statistics.median(taken)
    await store.close()
    return medians


def main(
    sessions: Annotated[list[int], typer.Option(help="How many there are; may come again.")] = [  # noqa: B006 -- typer copies it
        100,
        10_000,
    ],
    times: Annotated[int, typer.Option(help="How often each is done.")] = 40,
) -> None:
    """Fill SQLite databases and time what the server asks of them."""
    found = []
    for count in sessions:
        with tempfile.TemporaryDirectory() as folder:
            url = sqlite_url(Path(folder) / "sessiond.db")
            migrate.upgrade(url)
            crowd.fill(url, count)
            found.append(asyncio.run(measure(url, times)))
    table = Table("ms of a core, median", *(f"{count} sessions" for count in sessions))
    for name in found[0]:
        table.add_row(name, *(f"{one[name]:.2f}" for one in found))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
