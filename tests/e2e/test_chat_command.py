"""`sessiond chat` against a real server."""

import re
import subprocess
import sys

import pytest

from tests.e2e.support import SYSTEM_PROMPT, assert_all_blocks_come_back


def chat(server, *arguments, piped=""):
    command = [sys.executable, "-m", "sessiond", "chat", "--url", server.url, *arguments]
    command += ["--temperature", "0", "--max-output-tokens", "12"]
    return subprocess.run(
        command, check=False, input=piped, capture_output=True, text=True, timeout=120
    )


def reused_tokens(done):
    return [int(count) for count in re.findall(r"reused (\d+)", done.stderr)]


def test_once_answers_and_tells_what_it_took(server):
    done = chat(server, "--once", "What is the capital of France?")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert reused_tokens(done) == [pytest.approx(0, abs=SYSTEM_PROMPT)]


def test_piped_conversation_reuses_inspects_and_resets(server):
    done = chat(server, piped="Name a colour.\nAnother one?\n/inspect\n/reset\nHello again.\n")
    assert done.returncode == 0, done.stderr
    first, second, after_reset = reused_tokens(done)
    assert max(first, after_reset) <= SYSTEM_PROMPT < second
    assert "conv_" in done.stderr
    assert "assistant" in done.stderr
    assert_all_blocks_come_back(server)
