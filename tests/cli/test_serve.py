"""What `sessiond serve` refuses before a model is loaded. The rest: tests/e2e/test_serve.py."""

import socket

import pytest
from typer.testing import CliRunner

from sessiond.__main__ import build_cli


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def serve(*flags: str):
    return CliRunner().invoke(build_cli(), ["serve", "--port", "0", *flags])


def test_a_taken_port_is_told_at_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = serve("--port", str(port), "--model", "no-such-model")
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in result.output
    assert not list(tmp_path.iterdir())


def test_an_unknown_model_is_wrong_usage_and_lists_what_is_known():
    result = serve("--model", "gpt-17")
    assert result.exit_code == 2
    assert "gpt-17" in result.output
    assert "smollm2-135m-instruct" in result.output


def test_a_file_that_is_no_model_fails_with_its_name(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    result = serve("--model", "notes.txt")
    assert result.exit_code == 1
    assert "notes.txt" in result.output
    assert "Traceback" not in result.output


def test_a_database_that_is_not_known_is_wrong_usage(tmp_path):
    (tmp_path / "m.gguf").touch()
    result = serve("--model", "m.gguf", "--db", "mysql://x/y")
    assert result.exit_code == 2
    assert "mysql" in result.output
