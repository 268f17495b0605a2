"""The commands that ask a server say their key, by flag or variable."""

import asyncio
import json
import os
import sys

import pytest
from typer.testing import CliRunner

from sessiond.__main__ import build_cli
from tests.api.tenants import Person


@pytest.fixture
async def keyed(stack):
    async with stack(keys=True) as running:
        yield running


async def run(running, *words, key=None, **variables):
    """Run a command in a thread: the server runs in this one."""
    flags = ["--api-key", key] if key else []
    return await asyncio.to_thread(
        CliRunner().invoke,
        build_cli(),
        [*words, "--url", running.served.http_url, *flags],
        env=variables,
    )


async def chat(running, **variables):
    """In a process of its own, for it takes Ctrl-C."""
    command = ["-m", "sessiond", "chat", "--url", running.served.http_url]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        *("--once", "hi", "--max-output-tokens", "16"),
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def test_a_chat_needs_the_key_and_belongs_to_its_user(keyed):
    ann, bob = await Person.join(keyed, "ann"), await Person.join(keyed, "bob")
    assert (await chat(keyed, SESSIOND_API_KEY=ann.key))[0] == 0
    [session] = json.loads((await run(keyed, "session", "list", "--json", key=ann.key)).stdout)
    shown = await run(keyed, "session", "show", session["id"], SESSIOND_API_KEY=ann.key)
    assert shown.exit_code == 0
    foreign = await run(keyed, "session", "show", session["id"], SESSIOND_API_KEY=bob.key)
    assert foreign.exit_code == 1
    assert "there is no" in foreign.output
    for word in ("reset", "close"):
        assert (await run(keyed, "session", word, session["id"], key=bob.key)).exit_code == 1
        assert (await run(keyed, "session", word, session["id"], key=ann.key)).exit_code == 0


async def test_doctor_is_for_admins(keyed):
    root, ann = await Person.join(keyed, "root", "admin"), await Person.join(keyed, "ann")
    assert (await run(keyed, "doctor", key=root.key)).exit_code == 0
    refused = await run(keyed, "doctor", key=ann.key)
    assert refused.exit_code == 1
    assert "requires an admin" in refused.output


async def test_a_chat_without_a_good_key_says_how_to_say_one(keyed):
    code, said = await chat(keyed)
    assert code == 1
    assert "(401)" in said
    assert "SESSIOND_API_KEY" in said


@pytest.mark.parametrize("words", [("session", "list"), ("doctor",)])
async def test_without_a_key_the_command_says_how_to_say_one(keyed, words):
    result = await run(keyed, *words)
    assert result.exit_code == 1
    assert "SESSIOND_API_KEY" in result.output
    assert "401" in result.output
