"""The examples of docs/clients.md, run as they stand; only the address is another."""

import re
import subprocess
import sys

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


def test_python_example(server, tmp_path):
    (code,) = code_blocks(PAGE, "python")
    shown = run([sys.executable, "-"], code, server, tmp_path)
    assert_second_turn_reuses_more(shown)
    assert_all_blocks_come_back(server)


def test_javascript_example(server, node):
    (code,) = code_blocks(PAGE, "js")
    shown = run([node, "--input-type=module", "-"], code, server, JS)
    assert_second_turn_reuses_more(shown)
    assert_all_blocks_come_back(server)


def test_curl_examples(server, tmp_path):
    whole, streamed, lists = (
        run(["bash", "-e"], code, server, tmp_path) for code in code_blocks(PAGE, "bash")
    )
    assert '"object":"response"' in whole.replace(": ", ":")
    assert "event: response.completed" in streamed or "event: response.incomplete" in streamed
    assert "kv_bytes_per_token" in lists
