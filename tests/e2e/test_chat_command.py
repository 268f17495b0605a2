"""`sessiond chat` against a real server."""

import subprocess
import sys

from tests.e2e.support import assert_all_blocks_come_back


def chat(server, *arguments, piped=""):
    command = [sys.executable, "-m", "sessiond", "chat", "--url", server.url, *arguments]
    command += ["--temperature", "0", "--max-output-tokens", "12"]
    return subprocess.run(
        command, check=False, input=piped, capture_output=True, text=True, timeout=120
    )


def test_once_answers_and_tells_what_it_took(server):
    done = chat(server, "--once", "What is the capital of France?")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "reused 0 · new " in done.stderr


def test_piped_conversation_reuses_inspects_and_resets(server):
    done = chat(server, piped="Name a colour.\nAnother one?\n/inspect\n/reset\nHello again.\n")
    assert done.returncode == 0, done.stderr
    stats = [line for line in done.stderr.splitlines() if "reused" in line]
    reused = [int(line.split("reused ")[1].split()[0]) for line in stats]
    assert reused[0] == 0
    assert reused[1] > 0
    assert "conv_" in done.stderr
    assert "assistant" in done.stderr
    assert_all_blocks_come_back(server)
