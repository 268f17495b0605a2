"""The examples of docs/operations.md about databases, run as they stand."""

import asyncio
import os
import subprocess
import sys

import pytest

from sessiond.store.store import Store
from tests.docs.blocks import ROOT, code_blocks_of_section
from tests.store.rows import kept, prompt, session, turn

PAGE, HEADING = "docs/operations.md", "## Database"


def run(code, folder, **variables):
    """As in a shell whose `sessiond` is this checkout's."""
    code = code.replace("sessiond db", f"{sys.executable} -m sessiond db")
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(
        ["bash", "-e"],
        input=code,
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def talk(url):
    async def go():
        store = Store(url)
        await store.begin_turn(turn(), session=session(), prompt=prompt())
        await store.commit_turn(kept())
        await store.close()

    asyncio.run(go())


def context(url):
    async def go():
        store = Store(url)
        ids = await store.context_ids("ann", "sys_1", "resp_1")
        await store.close()
        return ids

    return asyncio.run(go())


@pytest.fixture
def examples():
    sqlite_upgrade, postgres_upgrade, sqlite_backup, postgres_backup = code_blocks_of_section(
        PAGE, HEADING, "bash"
    )
    return {
        "sqlite": (sqlite_upgrade, sqlite_backup),
        "postgres": (postgres_upgrade, postgres_backup),
    }


def test_sqlite_is_migrated_and_copied(examples, tmp_path):
    upgrade, backup = examples["sqlite"]
    assert run(upgrade, tmp_path).startswith("the schema is up to date")
    talk(f"sqlite+aiosqlite:///{tmp_path / 'sessiond.db'}")
    run(backup, tmp_path)
    assert context(f"sqlite+aiosqlite:///{tmp_path / 'backup.db'}") == [1, 2, 3, 4, 5]


@pytest.mark.second
def test_postgres_is_migrated_dumped_and_restored(examples, tmp_path, postgres):
    upgrade, backup = examples["postgres"]
    variables = postgres.variables | {"PATH": f"{postgres.programs}:{os.environ['PATH']}"}
    assert run(upgrade, tmp_path, **variables).startswith("the schema is up to date")
    talk(postgres.url("sessiond"))
    assert "the schema is up to date" in run(backup, tmp_path, **variables)
    assert context(postgres.url("restored")) == [1, 2, 3, 4, 5]
    for name in ("sessiond", "restored"):
        postgres.drop(name)
