"""What `sessiond plan` says before a server starts, beside what the server then has."""

import json
import subprocess
import sys

import pytest

from benchmarks.server_process import running_server


def plan(*words):
    command = [sys.executable, "-m", "sessiond", "plan", "--json", *words]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return found.returncode, json.loads(found.stdout)


@pytest.mark.parametrize("settings", [[], ["--kv-cache-dtype", "int8"], ["--weights=dequantized"]])
def test_a_plan_agrees_with_the_server(tmp_path, settings):
    with running_server(tmp_path, settings) as server:
        capacity = server.get("/health/capacity")
        code, planned = plan("--url", server.url, *settings)
    assert code == 0
    assert planned["server"]["apart"] < 0.02
    for name in ("kv_bytes_per_token", "block_size"):
        assert planned[name] == capacity[name]
    for name in ("weights_bytes", "activation_bytes"):
        assert planned[name] == capacity["memory"][name]


def test_another_plan_than_the_servers_is_told(tmp_path):
    with running_server(tmp_path, ["--kv-cache-memory", "32MiB"]) as server:
        code, planned = plan("--url", server.url, "--kv-cache-memory", "64MiB")
    assert code == 1
    assert planned["server"]["apart"] == pytest.approx(1.0, rel=0.01)
