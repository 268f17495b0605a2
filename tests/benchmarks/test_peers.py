"""Peers on this machine: found, started, ended; none of them needs to be installed for this."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.contestants import LlamaServer
from benchmarks.peer_files import LLAMA_TOOLS, PeerFiles
from benchmarks.peer_process import PeerStartError, running_peer
from benchmarks.process_tree import process_tree, pss_mb
from benchmarks.rate_tools import read_batched_bench, read_llama_bench
from benchmarks.workloads import W2, W3, W4
from tests.e2e.support import wait_until

# answers /health, and starts a child, as servers do
PEER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer((sys.argv[2], int(sys.argv[4])), Handler).serve_forever()
"""


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_peer_is_ended_with_all_that_it_started(tmp_path):
    command = [sys.executable, "-c", PEER]
    with running_peer(command, tmp_path / "log", ready_within_s=120) as peer:
        pids = process_tree(peer.pid)
        assert len(pids) == 2
        assert pss_mb(peer.pid) > 1
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_peer_that_does_not_start_says_why(tmp_path):
    command = [sys.executable, "-c", "print('no such model'); exit(3)"]
    with (
        pytest.raises(PeerStartError, match="no such model"),
        running_peer(command, tmp_path / "log", ready_within_s=120),
    ):
        pass


def test_what_is_missing_is_named(tmp_path):
    files = PeerFiles(tmp_path)
    assert files.llama_tool("llama-server") in files.missing("llama")
    assert files.vllm_model / "model.safetensors" in files.missing("vllm")
    for path in (*map(files.llama_tool, LLAMA_TOOLS), files.q4_0):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert set(files.missing("llama")) <= {files.q4_1}


def flags(workload, **how):
    server = LlamaServer(binary="llama-server", model="m.gguf", log_path="log", **how)
    words = server.arguments(workload)
    return {flag: value for flag, value in pairwise(words) if flag[0] == "-"}


def test_llama_server_gets_the_slots_and_the_context_that_a_workload_needs():
    assert (flags(W2)["--parallel"], flags(W2)["--ctx-size"]) == ("8", str(8 * 2048))
    assert (flags(W3)["--parallel"], flags(W3)["--ctx-size"]) == ("32", str(32 * 2048))
    assert flags(W3, max_slots=8)["--parallel"] == "8"
    assert (flags(W4)["--parallel"], flags(W4)["--ctx-size"]) == ("1", "8192")


def test_rates_are_read_out_of_llamas_tools():
    prefills = [{"n_prompt": n, "avg_ts": n / 2} for n in (64, 512, 4096)]
    assert read_llama_bench(json.dumps(prefills)) == {"prefill_512": 256, "prefill_4096": 2048}
    lines = '\n{"pl": 1, "speed_tg": 127.5}\n{"pl": 8, "speed_tg": 182}\nllama_perf: 3\n'
    assert read_batched_bench(lines) == {"decode_1": 127.5, "decode_8": 182.0}
