"""The examples of docs/clients.md, run as they stand; only the address is another."""

import json
import re
import subprocess
import sys

import pytest

from tests.docs.blocks import code_blocks
from tests.e2e.conftest import JS
from tests.e2e.support import assert_all_blocks_come_back

PAGE = "docs/clients.md"


def run(command, code, server, folder):
    pointed = code.replace("http://127.0.0.1:8080", server.url)
    done = subprocess.run(
        command, input=pointed, check=False, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_second_turn_reuses_more(shown):
    first, second = map(int, re.findall(r"^\[(\d+) of \d+ tokens reused\]$", shown, re.MULTILINE))
    assert first < second


def python_examples():
    return code_blocks(PAGE, "python")


@pytest.mark.parametrize("which", [0, 1])
def test_python_chats(server, tmp_path, which):
    shown = run([sys.executable, "-"], python_examples()[which], server, tmp_path)
    assert_second_turn_reuses_more(shown)
    assert_all_blocks_come_back(server)


def test_python_comes_back_to_a_response(server, tmp_path):
    _, _, code = python_examples()
    first = run([sys.executable, "-"], code, server, tmp_path)
    said, _, status = first.rstrip("\n").rpartition("\n")
    assert said.strip(), "the reply of the response that it came back to"
    assert status in {"completed", "incomplete"}
    assert run([sys.executable, "-"], code, server, tmp_path) == first
    assert_all_blocks_come_back(server)


@pytest.mark.extra(stack="js")
@pytest.mark.parametrize("which", [0, 1])
def test_javascript_chats(server, node, which):
    code = code_blocks(PAGE, "js")[which]
    shown = run([node, "--input-type=module", "-"], code, server, JS)
    assert_second_turn_reuses_more(shown)
    assert_all_blocks_come_back(server)


def test_curl_examples(server, tmp_path):
    whole, streamed, lists, life, described = (
        run(["bash", "-e"], code, server, tmp_path) for code in code_blocks(PAGE, "bash")
    )
    assert '"object":"response"' in whole.replace(": ", ":")
    assert "event: response.completed" in streamed or "event: response.incomplete" in streamed
    assert "kv_bytes_per_token" in lists
    opened, answered, fork, reset, deleted = (json.loads(line) for line in life.splitlines())
    assert answered["conversation"]["id"] == opened["id"] == reset["id"] != fork["id"]
    assert len(fork["turns"]) > len(reset["turns"]) == 0
    assert deleted["deleted"] is True
    assert json.loads(described)["openapi"].startswith("3.1")
