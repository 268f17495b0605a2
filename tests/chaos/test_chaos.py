"""Every fault at random under load; the run's own checks say what must hold (`run.py`).

`python -m tests.chaos --seed N --steps M` repeats a run and prints its table.
"""

import asyncio
import random

import pytest

from sessiond.store import migrate
from tests.chaos.client import Ledger
from tests.chaos.faults import ANYWHERE, SQLITE, postgres_faults
from tests.chaos.reader import Reader
from tests.chaos.run import Plan, Run
from tests.chaos.stack import chaos_stack
from tests.soak import SOAK, seed_of

pytestmark = pytest.mark.second

SEED = seed_of("CHAOS_SEED")
SHORT = sorted({"engine killed", "step error", "no memory for one", "nan", "SQLite locked",
                "disk tier corrupted", "clock back", "no descriptors"})  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(3600 if SOAK else 900)
@pytest.mark.parametrize("seed", range(SEED, SEED + 5) if SOAK else [SEED])
async def test_conversations_survive_every_fault(migrated_file, tmp_path, seed):
    faults = ANYWHERE | SQLITE
    if not SOAK:
        faults = {kind: faults[kind] for kind in SHORT}
    path = tmp_path / "chaos.db"
    path.write_bytes(migrated_file.read_bytes())
    operations, each = (1000, 4) if SOAK else (60, 5)
    plan = Plan(seed=seed, operations=operations, faults=faults, operations_per_fault=each)
    report = await Run(plan).go(f"sqlite+aiosqlite:///{path}", tmp_path)
    assert report.survived == report.injected > 0
    assert report.ledger.completed > operations / 4, "else little was tried"
    if SOAK:
        assert set(report.fates) == set(faults), "every kind came"


@pytest.mark.soak
@pytest.mark.timeout(3600 if SOAK else 900)
async def test_conversations_survive_what_a_postgres_does(tmp_path):
    pytest.importorskip("psycopg")
    from tests.store.postgres import PostgresUnavailableError, running_postgres

    try:
        with running_postgres() as server:
            url = server.url(server.create())
            await asyncio.to_thread(migrate.upgrade, url)
            operations = 400 if SOAK else 25
            plan = Plan(seed=SEED, operations=operations, faults=postgres_faults(server))
            report = await Run(plan).go(url, tmp_path)
    except PostgresUnavailableError as error:
        pytest.skip(str(error))
    assert report.survived == report.injected > 0


async def test_without_faults_every_turn_is_whole(migrated_file, tmp_path):
    """The calm run: what the others are compared with."""
    path = tmp_path / "calm.db"
    path.write_bytes(migrated_file.read_bytes())
    plan = Plan(seed=SEED, operations=40, faults={}, step_timeout_s=60.0)
    report = await Run(plan).go(f"sqlite+aiosqlite:///{path}", tmp_path)
    told = set(report.ledger.outcomes)
    # a socket that is cut by its client ends a turn, too, and one socket keeps another waiting
    asked_for = {"cancelled", "cut", "turn_in_progress", "request_too_large"}
    assert told <= {"completed", "max_output_tokens", *asked_for}
    assert (report.restarts, report.injected) == (0, 0)


@pytest.mark.parametrize("operation", ["read_slowly", "vanish", "wait_in_silence"])
async def test_a_reader_in_calm_gets_all(migrated_file, tmp_path, operation):
    """Under faults some of its checks are broken off, here by a machine that is slow at most."""
    path = tmp_path / "calm.db"
    path.write_bytes(migrated_file.read_bytes())
    async with chaos_stack(f"sqlite+aiosqlite:///{path}", tmp_path, 60.0) as stack:
        reader = Reader(stack, random.Random(SEED), Ledger())
        for _ in range(10):
            if await getattr(reader, operation)():
                break
        else:
            pytest.fail("no check of ten was whole")
        await reader.leave()
