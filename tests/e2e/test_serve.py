"""The server process itself: what it prints, what it loads, how it ends."""

import os
import signal
from pathlib import Path

from benchmarks.server_process import ServerProcess
from tests.e2e.support import wait_until


def children(pid):
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_gone(pid):
    return not Path(f"/proc/{pid}").exists()


def test_the_first_lines_say_what_it_is_where_it_listens_and_how_big_the_pool_is(server):
    assert server.log.startswith("sessiond ")
    assert f"listening  {server.url}   socket ws://" in server.log
    assert "KV pool    " in server.log
    assert "free memory" in server.log
    assert f"sessiond chat --url {server.url}" in server.log
    assert "\x1b" not in server.log


def test_the_model_runs_in_the_engine_process_and_torch_is_not_in_the_gateway(server):
    [engine] = children(server.process.pid)
    gateway_maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch" not in gateway_maps
    assert "libsessiond_kernels" not in gateway_maps
    engine_maps = Path(f"/proc/{engine}/maps").read_text()
    # one of them: torch is large, and comes only where it serves
    assert ("libsessiond_kernels" in engine_maps) != ("libtorch" in engine_maps)


def test_sigterm_to_all_its_processes_ends_it_with_exit_code_0(tmp_path):
    server = ServerProcess(tmp_path, ["--kv-cache-memory", "64MiB"])
    server.start()
    [engine] = children(server.process.pid)
    os.kill(engine, signal.SIGTERM)  # as a service manager does; the engine must outlast the drain
    assert server.stop() == 0
    assert is_gone(engine)
    assert server.log.rstrip().endswith("stopped")
    assert "Traceback" not in server.log
    assert "as set by --kv-cache-memory" in server.log


def test_killing_the_server_takes_the_engine_with_it(tmp_path):
    server = ServerProcess(tmp_path, ["--kv-cache-memory", "64MiB"])
    server.start()
    [engine] = children(server.process.pid)
    server.process.kill()
    server.process.wait()
    wait_until(lambda: is_gone(engine), what="the end of the engine")
