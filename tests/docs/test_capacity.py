"""The commands of docs/capacity.md do what it says; those that load a server: tests/e2e."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from loadtest.people import load_trace
from loadtest.scenarios import SCENARIOS
from sessiond.__main__ import build_cli
from tests.docs.blocks import code_blocks, code_blocks_of_section, table_rows
from tests.planning.test_memory_plan import LLAVA

pytestmark = pytest.mark.second

PLANS = [
    line.split("#")[0].strip()
    for code in code_blocks_of_section(
        "docs/capacity.md", "## Before launch: `sessiond plan`", "sh"
    )
    for line in code.splitlines()
]


@pytest.mark.parametrize("line", [line for line in PLANS if "--url" not in line])
@pytest.mark.real_model
def test_plans_of_the_page(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llava").mkdir()
    (tmp_path / "llava" / "config.json").write_text(json.dumps(LLAVA))
    program, *words = shlex.split(line)
    assert program == "sessiond"
    result = CliRunner().invoke(build_cli(), words)
    assert result.exit_code == 0, result.stderr


def test_every_scenario_is_listed():
    rows = table_rows("docs/capacity.md", "## Load: `loadtest/`")
    assert dict(rows) == {name: one.about for name, one in SCENARIOS.items()}


def test_the_plan_beside_a_server_is_tried_end_to_end():
    assert [line for line in PLANS if "--url" in line] == [
        "sessiond plan --url http://127.0.0.1:8080"  # tests/e2e/test_plan.py
    ]


def test_m08_simulate_and_the_load_read_the_trace_of_the_page(tmp_path, monkeypatch):
    (example,) = code_blocks("docs/traces.md", "json")
    (tmp_path / "own.jsonl").write_text(example)
    monkeypatch.chdir(tmp_path)
    (commands,) = code_blocks("docs/traces.md", "sh")
    simulate, capacity = (shlex.split(line)[1:] for line in commands.splitlines())
    result = CliRunner().invoke(build_cli(), simulate)
    assert result.exit_code == 0, result.stderr
    assert "own: 3 requests" in result.stdout
    assert capacity[:3] == ["capacity", "--trace", "own.jsonl"]  # tests/e2e/test_load.py
    turns = load_trace(tmp_path / "own.jsonl")
    assert [[turn.new_tokens for turn in one] for one in turns] == [[830, 40], [45]]
