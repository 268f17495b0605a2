"""`sessiond simulate` on a trace of three requests."""

import json

import pytest
from typer.testing import CliRunner

from sessiond.__main__ import build_cli

CSV = "t,session,turn,input_len,output_len\n0,1,1,40,20\n9,2,1,16,1\n50,1,2,100,9\n"


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "burst.csv"
    path.write_text(CSV)
    return str(path)


def simulate(*words: str):
    return CliRunner().invoke(build_cli(), ["simulate", *words])


def test_json_is_a_list_of_policies_beside_the_references(trace) -> None:
    result = simulate(trace, "--policy", "ttl", "--capacity", "8", "--json")
    rows = {row["policy"]: row for row in json.loads(result.stdout)}
    assert list(rows) == ["fifo", "belady", "ttl"]
    assert rows["ttl"] == rows["ttl"] | {
        "capacity": 8, "hits": 2, "lookups": 9, "evictions": 0, "bytes_moved": 0, "oracle": False,
    }  # fmt: skip
    assert rows["belady"]["oracle"]


def test_each_capacity_has_its_rows_and_hints_are_called_an_oracle(trace) -> None:
    result = simulate(trace, "--capacity", "7", "--capacity", "9", "--hints", "dead")
    assert result.exit_code == 0
    assert result.stdout.count("belady") == 2
    assert "hints" in result.stdout
    assert "oracle" in result.stdout


def test_sessions_can_be_drawn(trace) -> None:
    result = simulate("--synthetic-sessions", "50", "--capacity", "200", "--json")
    assert [row["policy"] for row in json.loads(result.stdout)] == ["lru", "cost_aware"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "exactly one of a trace and --synthetic-sessions"),
        (["--synthetic-sessions", "5", "--hints", "close"], "--hints needs a trace"),
        (["gone.csv"], "No such file"),
    ],
)
def test_wrong_use_is_told(words, said) -> None:
    result = simulate(*words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_an_unknown_policy_is_told_with_those_there_are(trace) -> None:
    result = simulate(trace, "--policy", "lfu")
    assert result.exit_code == 2
    assert "one of lru, ttl, priority, cost_aware" in result.stderr


def test_a_plot_is_a_png(trace, tmp_path) -> None:
    result = simulate(
        trace, "--capacity", "7", "--capacity", "9", "--plot", str(tmp_path / "p.png")
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
