"""The load test and `sessiond capacity` against a whole server."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from benchmarks.server_process import running_server
from loadtest.scenarios import SCENARIOS
from sessiond.capacity.observations import TurnSeen, read
from tests.docs.blocks import ROOT, code_blocks, code_blocks_of_section
from tests.e2e.support import assert_all_blocks_come_back


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A server that a crowd talks to."""
    with running_server(tmp_path_factory.mktemp("load"), ["--http-hold-s", "1"]) as server:
        yield server
        assert "Traceback" not in server.log, server.log


def locust(server, *options):
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless"]
    command += ["--only-summary", "--host", server.url, "--max-output-tokens", "8"]
    command += ["--stop-timeout", "90", *options]  # a slow machine's turns may end, too
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_each_crowd_is_served_and_leaves_nothing_behind(loaded, tmp_path, scenario):
    record = tmp_path / "turns.jsonl"
    ran = locust(
        loaded, "--scenario", scenario, "-u", "4", "-t", "3s", "--time-scale", "0.002",
        "--record", str(record),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "gate: passed" in ran.stdout
    turns = [seen for seen in read(record) if isinstance(seen, TurnSeen)]
    assert turns
    assert not any(turn.lost for turn in turns)
    assert_all_blocks_come_back(loaded)


def test_a_limit_that_is_broken_ends_with_code_1(loaded):
    ran = locust(loaded, "-u", "2", "-t", "4s", "--time-scale", "0.002", "--p95", "turn=1")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "gate: p95 of turn must be at most" in ran.stdout


def test_the_commands_of_the_page_do_what_it_says(loaded, tmp_path):
    commands = [
        shlex.split(line.replace("http://127.0.0.1:8080", loaded.url))
        for heading in ("## Load: `loadtest/`", "## What a server bears: `sessiond capacity`")
        for code in code_blocks_of_section("docs/capacity.md", heading, "sh")
        for line in code.splitlines()
    ]
    (tmp_path / "loadtest").symlink_to(ROOT / "loadtest")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SESSIOND_URL": loaded.url}
    said = ""
    for module, *words in commands:
        ran = subprocess.run(
            [sys.executable, "-m", module, *words], cwd=tmp_path, env=environment,
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        allowed = (0, 1) if "--check" in words else (0,)  # a busy machine may not hold
        assert ran.returncode in allowed, ran.stdout + ran.stderr
        said += ran.stdout
    for expected in ("gate: passed", "1000 users with 25 % reserve", "tokens/s expected"):
        assert expected in said
    out = tmp_path / "capacity"
    report = json.loads((out / "report.json").read_bytes())
    assert [stage["users"] for stage in report["stages"]] == [2, 4]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png" in (out / "report.html").read_text()
    assert json.loads((out / "check.json").read_bytes())


def test_a_report_that_is_none_is_refused(loaded, tmp_path):
    (tmp_path / "report.json").write_text("{}")
    command = [sys.executable, "-m", "sessiond", "capacity", "--url", loaded.url]
    ran = subprocess.run(
        [*command, "--check", str(tmp_path / "report.json")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "--check must be a report.json of this command" in ran.stderr


def capacity(loaded, folder, *options):
    command = [sys.executable, "-m", "sessiond", "capacity", "--url", loaded.url, *options]
    ran = subprocess.run(
        [*command, "--out", str(folder), "--stage-s", "4"],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads((folder / "report.json").read_bytes()), ran.stdout


def test_m08_capacity_replays_a_trace_of_ones_own(loaded, tmp_path):
    (example,) = code_blocks("docs/traces.md", "json")
    (tmp_path / "own.jsonl").write_text(example)
    report, _ = capacity(
        loaded, tmp_path / "out", "--trace", str(tmp_path / "own.jsonl"),
        "--users", "2", "--stages", "2", "--time-scale", "0.01",
    )  # fmt: skip
    assert report["load"] == "sessions of own.jsonl, think times × 0.01, replies up to 120 tokens"
    turns = [one for one in read(tmp_path / "out" / "turns.jsonl") if isinstance(one, TurnSeen)]
    assert turns
    assert not any(turn.lost for turn in turns)


def test_m08_capacity_ramps_up_lengths(loaded, tmp_path):
    report, said = capacity(
        loaded, tmp_path / "out", "--length-ramp", "400",
        "--users", "2", "--stages", "2", "--time-scale", "0.002", "--max-output-tokens", "8",
    )  # fmt: skip
    assert [(one["users"], one["length_tokens"]) for one in report["stages"]] == [
        (2, 200),
        (2, 400),
    ]
    assert "longest conversations of 2 users: " in said


def test_a_trace_that_is_none_is_refused_before_anything_starts(loaded, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "sessiond", "capacity", "--url", loaded.url, "--trace", "no.jsonl"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ran.returncode, "No such file" in ran.stderr) == (2, True)
