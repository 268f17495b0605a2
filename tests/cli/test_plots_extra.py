"""Commands that draw, where matplotlib is not installed."""

import sys

import pytest
from typer.testing import CliRunner

from sessiond.__main__ import build_cli

NEEDED = "needs the extra `plots`: pip install 'sessiond[plots]'"


@pytest.fixture(autouse=True)
def no_matplotlib(monkeypatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # so that importing it fails


def run(*words: str):
    return CliRunner().invoke(build_cli(), words)


def test_the_blocker_blocks() -> None:
    with pytest.raises(ImportError):
        import matplotlib  # noqa: F401, ICN001 -- has to fail


def test_a_plot_of_a_simulation_is_refused_before_the_replay(tmp_path) -> None:
    path = tmp_path / "a.png"
    result = run("simulate", "--synthetic-sessions", "2", "--plot", str(path))
    assert result.exit_code == 1
    assert result.stderr.strip() == f"sessiond: --plot {NEEDED}"
    assert result.stdout == ""
    assert not path.exists()


def test_a_simulation_without_a_plot_needs_nothing() -> None:
    result = run("simulate", "--synthetic-sessions", "2", "--capacity", "10", "--policy", "lru")
    assert result.exit_code == 0, result.output


def test_capacity_is_refused_before_any_load(tmp_path) -> None:
    folder = tmp_path / "capacity"
    result = run("capacity", "--url", "http://127.0.0.1:9", "--out", str(folder))
    assert result.exit_code == 1
    assert result.stderr.strip() == f"sessiond: capacity {NEEDED}"
    assert not folder.exists()
