"""The rings of tests: what is in which, and what the first may start."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import databases, rings
from tests.e2e.support import wait_until

ROOT = Path(__file__).parents[1]


def collected(ring, *paths):
    """The tests of a ring, by file."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "--ring", ring, *paths]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in {0, 5}, done.stdout
    return Counter(line.split("::")[0] for line in done.stdout.splitlines() if "::" in line)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["python", "-m", "sessiond", "serve", "--port", "1"], "server"),
        ([".venv/bin/sessiond", "serve"], "server"),
        (["python", "-m", "tests.diagnosis.own_server", "sqlite://"], "server"),
        (["python", "-m", "sessiond", "chat", "--once", "serve"], None),
        (["/x/bin/postgres", "-D", "data"], "postgres"),
        (["/x/bin/pg_ctl", "-D", "data", "start"], "postgres"),
        (["/x/bin/pg_ctl", "-D", "data", "stop"], None),
        (["/x/bin/postgres", "--version"], None),
        (["/x/node", "cli.js", "run-driver"], "browser"),
        (["gcc", "-shared", "step.c"], None),
    ],
)
def test_what_a_command_starts(command, kind):
    assert rings.kind_of(command) == kind


def test_each_test_is_in_one_ring():
    paths = ("tests/e2e", "tests/sessions/test_quotas.py", "tests/sessions/test_turns.py")
    counts = [collected(ring, *paths) for ring in rings.RINGS]
    first, second, extra = counts
    assert [name for name in first if "/e2e/" in name] == ["tests/e2e/test_smoke.py"]
    assert "tests/e2e/test_sdk_clients.py" in set(second) & set(extra)
    assert first["tests/sessions/test_turns.py"] == second["tests/sessions/test_turns.py"]  # SQL
    assert "tests/sessions/test_quotas.py" not in second


def test_lists_of_what_runs_on_which_database_name_what_is_there():
    folder = ROOT / "tests"
    assert all((folder / name).is_file() for name in databases.ON_BOTH)
    assert all((folder / name).is_dir() for name in databases.ABOVE_SQL)
    assert all((folder / name).is_file() for name in databases.ABOVE_SQL_TOO)


@pytest.fixture
def run(monkeypatch):
    """The owner of a first ring's run that never ran."""
    monkeypatch.setenv(rings.VARIABLE, "")
    run = rings.Run("first")
    yield run
    rings.shutil.rmtree(rings.run_folder())


@pytest.mark.parametrize(("servers", "status"), [(6, pytest.ExitCode.OK), (7, 1)])
def test_the_first_ring_fails_when_it_starts_too_much(run, servers, status):
    (rings.run_folder() / "started").write_text("server\n" * servers + "browser\n")
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    run.pytest_sessionfinish(session)
    assert session.exitstatus == status
    assert run.too_many() == ({} if status == 0 else {"server": 7})


def first_ring_of(file):
    command = [sys.executable, "-m", "tests", "first", str(file), "-n", "0"]
    own = ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.rings", "-p", "no:cacheprovider"]
    return [*command, *own]


def test_sigterm_ends_a_run_with_all_it_has_started(tmp_path):
    """As Ctrl-C does: pytest stops its Postgres, then the run ends."""
    waits = tmp_path / "test_waits.py"
    text = "import pathlib, signal\n\n\ndef test_it(request):\n"
    text += f"    pathlib.Path({str(tmp_path / 'began')!r}).touch()\n"
    text += "    try:\n        signal.pause()\n    finally:\n"
    text += f"        pathlib.Path({str(tmp_path / 'cleaned')!r}).touch()\n"
    waits.write_text(text)
    with subprocess.Popen(first_ring_of(waits), cwd=ROOT, stdout=subprocess.DEVNULL) as run:
        wait_until((tmp_path / "began").exists, within_s=60)
        run.terminate()
        assert run.wait(60) != 0
    assert (tmp_path / "cleaned").exists()


def test_a_mark_of_ones_own_joins_the_parts_mark(tmp_path):
    marked = tmp_path / "test_marked.py"
    marked.write_text(
        "import pytest\n\n\n@pytest.mark.serial\ndef test_alone():\n    pass\n\n\n"
        "def test_beside():\n    pass\n"
    )
    command = [*first_ring_of(marked), "-m", "not serial"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if " passed" in line] == [
        line for line in done.stdout.splitlines() if line.startswith("1 passed")
    ]
