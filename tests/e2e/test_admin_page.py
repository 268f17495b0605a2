"""docs/admin.md, run from its first example to its last against one server."""

import os
import shlex
import subprocess
import sys

import pytest

from benchmarks.server_process import ServerProcess
from tests.docs.blocks import ROOT, code_blocks

PAGE = "docs/admin.md"


def shell(script, folder, db, **variables):
    """Run a script whose `sessiond` is the one of this checkout."""
    command = folder / "sessiond"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m sessiond "$@"\n')
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SESSIOND_DB": db,
        "no_proxy": "*",
        **variables,
    }
    return subprocess.run(
        ["bash", "-eu", "-o", "pipefail"], input=script, check=False, cwd=folder,
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def flags():
    """Of the page's `sessiond serve`, but on loopback."""
    [command] = code_blocks(PAGE, "sh")
    words = shlex.split(command)
    assert words[:2] == ["sessiond", "serve"]
    assert "0.0.0.0" in words
    return ["127.0.0.1" if word == "0.0.0.0" else word for word in words[2:]]


def test_every_example_does_what_the_page_says(tmp_path, flags):
    first, *others = code_blocks(PAGE, "bash")
    server = ServerProcess(tmp_path, [*flags, "--kv-cache-memory", "64MiB"])
    db = f"sqlite+aiosqlite:///{tmp_path / 'sessiond.db'}"  # where `ServerProcess` has it
    made = shell(first + 'printf %s "$SESSIOND_API_KEY"', tmp_path, db)
    assert made.returncode == 0, made.stderr
    key = made.stdout
    server.start()
    try:
        steps = "".join(f"echo '# {number}'\n{code}" for number, code in enumerate(others))
        script = f"export SESSIOND_API_KEY={key}\n" + steps
        pointed = script.replace("http://127.0.0.1:8080", server.url)
        done = shell(pointed, tmp_path, db, SESSIOND_URL=server.url)
        assert done.returncode == 0, done.stdout + done.stderr
        _, _, said = done.stdout.partition("# 0\n")
        assert said.splitlines()[0].strip(), "the reply, in whatever words"
        assert "memory accounting is consistent" in done.stdout
        assert "401 Unauthorized" in done.stdout
        assert '"draining":true' in done.stdout
        assert done.stdout.count('"code":"invalid_api_key"') == 3
    finally:
        assert server.stop() == 0
    assert key not in server.log
    assert key.partition(".")[2] not in server.log
    assert "Traceback" not in server.log


def test_a_server_without_any_key_says_so_and_lets_nobody_in(tmp_path):
    server = ServerProcess(tmp_path, ["--auth", "keys", "--kv-cache-memory", "64MiB"])
    server.start()
    try:
        assert "sessiond user add NAME --role admin" in server.log
        with pytest.raises(OSError, match="401"):
            server.get("/v1/models")
    finally:
        server.stop()


def test_another_address_without_keys_is_refused_before_anything_starts(tmp_path):
    done = shell("sessiond serve --host 0.0.0.0", tmp_path, f"sqlite+aiosqlite:///{tmp_path}/x.db")
    assert done.returncode == 2
    assert "--host must be 127.0.0.1, ::1 or localhost" in done.stderr
    assert "--auth keys allows any" in done.stderr
    assert not (tmp_path / "x.db").exists()
