"""`python -m tests.chaos`: faults at random under load, and a table of what was survived."""

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sessiond.store import migrate
from tests.chaos.faults import ANYWHERE, SQLITE, Fault, postgres_faults
from tests.chaos.run import Plan, Report, Run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--steps", type=int, default=300, help="operations of all clients together")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--db", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--only", nargs="*", help="kinds of faults")
    parser.add_argument("--log", action="store_true", help="show what the server logs")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO if options.log else logging.CRITICAL)
    print(f"seed {options.seed}", flush=True)  # noqa: T201 -- so that a run that hangs can be repeated
    with tempfile.TemporaryDirectory() as folder, database(options.db, Path(folder)) as (url, own):
        faults = ANYWHERE | own
        if options.only is not None:
            faults = {kind: faults[kind] for kind in options.only}
        plan = Plan(
            seed=options.seed, operations=options.steps, clients=options.clients, faults=faults
        )
        migrate.upgrade(url)
        report = asyncio.run(Run(plan).go(url, Path(folder)))
    Console().print(table(report))
    return 0


@contextlib.contextmanager
def database(kind: str, folder: Path) -> Iterator[tuple[str, dict[str, Fault]]]:
    """An empty database, and what can go wrong with one of its kind."""
    if kind == "sqlite":
        yield f"sqlite+aiosqlite:///{folder}/chaos.db", SQLITE
        return
    from tests.store.postgres import running_postgres

    with running_postgres() as server:
        yield server.url(server.create()), postgres_faults(server)


def table(report: Report) -> Table:
    ledger = report.ledger
    shown = Table(
        "fault", "injected", "survived", "until a turn completed, at most",
        title=f"seed {report.seed}: {report.survived} of {report.injected} faults survived",
        caption=f"{sum(ledger.operations.values())} operations, {ledger.ended} turns "
        f"({ledger.completed} whole) in {report.seconds:.0f} s; the engine was lost "
        f"{report.restarts} times, {report.hangs} of them hung; auditor clean, "
        f"{len(ledger.acknowledged)} acknowledged turns of open conversations in SQL, "
        "all replies as without faults, memory, tasks and descriptors as at the start",
    )  # fmt: skip
    for kind, fate in sorted(report.fates.items()):
        shown.add_row(kind, str(fate.injected), str(fate.survived), f"{fate.slowest_s:.2f} s")
    return shown


if __name__ == "__main__":
    sys.exit(main())
