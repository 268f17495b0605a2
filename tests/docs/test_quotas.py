"""The section on quotas names every limit, and its examples work."""

import asyncio
import json
import shlex
import shutil

import pytest
from typer.testing import CliRunner

from sessiond.__main__ import build_cli
from sessiond.quota import QUOTA_FIELDS
from sessiond.store import migrate
from tests.docs.blocks import code_blocks, table_column
from tests.harness.stack import real_stack

PAGE = "docs/operations.md"
HERE = "http://127.0.0.1:8080"
QUOTA_BLOCKS = [block for block in code_blocks(PAGE, "bash") if "user quota" in block]


def test_every_limit_is_listed():
    assert sorted(table_column(PAGE, "## Quotas")) == sorted(QUOTA_FIELDS)


def test_the_examples_on_a_database_work(tmp_path, monkeypatch):
    url = f"sqlite+aiosqlite:///{tmp_path / 'a.db'}"
    migrate.upgrade(url)
    monkeypatch.setenv("SESSIOND_DB", url)
    sessiond("sessiond user add ann")
    outputs = [sessiond(line) for line in QUOTA_BLOCKS[0].splitlines()]
    assert json.loads(outputs[1])["tokens_per_day"] is None
    assert "max_concurrent_turns   4" in outputs[2]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_examples_on_a_server_work(url):
    async with real_stack(url) as stack:
        here, outputs = stack.served.http_url, []
        for line in QUOTA_BLOCKS[1].replace(HERE, here).splitlines():
            is_curl = line.startswith("curl")
            outputs.append(await curl(line) if is_curl else await asyncio.to_thread(sessiond, line))
    for output in outputs[:2]:
        assert json.loads(output)["tokens_per_minute"] == 20_000
    assert "max_priority           normal" in outputs[2]


def sessiond(line):
    result = CliRunner().invoke(build_cli(), shlex.split(line)[1:])
    assert result.exit_code == 0, result.output
    return result.output


async def curl(line):
    process = await asyncio.create_subprocess_exec(
        *shlex.split(line), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output
