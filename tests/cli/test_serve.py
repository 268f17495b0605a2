"""What `sessiond serve` refuses before a model is loaded. The rest: tests/e2e/test_serve.py."""

import logging
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


def test_n02_service_variables_are_passed_over_with_one_line_that_names_kubernetes(
    monkeypatch, caplog
):
    monkeypatch.setenv("SESSIOND_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("SESSIOND_PORT", "tcp://10.96.0.1:8080")
    caplog.set_level(logging.INFO, "sessiond")
    assert "there is no such setting" not in serve("--model", "gpt-17").output
    (line,) = [record.getMessage() for record in caplog.records if "Kubernetes" in record.message]
    assert "SESSIOND_PORT, SESSIOND_SERVICE_HOST" in line
    monkeypatch.setenv("SESSIOND_PROT", "1")
    refused = serve("--model", "gpt-17")
    assert refused.exit_code == 2
    assert "SESSIOND_PROT=1: there is no such setting; did you mean port?\n" in refused.output
