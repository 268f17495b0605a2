"""A peer's server in a process group of its own, on a free port of the loopback."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.server_process import free_port

_POLL_S = 0.1
_LOG_TAIL = 4000
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class PeerStartError(Exception):
    """A peer did not become ready; holds the end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerProcess:
    """A peer that answers at `url`."""

    url: str
    pid: int


@contextlib.contextmanager
def running_peer(
    command: Sequence[str],
    log_path: Path,
    *,
    ready_within_s: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[PeerProcess]:
    """Run `command --host .. --port ..` for the time of a `with` block; ends all its processes.

    Raises:
        PeerStartError: it ended, or is not ready in time.
    """
    port = free_port()
    words = [*command, "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with (
        log_path.open("ab") as log,
        subprocess.Popen(  # noqa: S603 -- our own command
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | dict(environment or {}),
            start_new_session=True,  # so that what it starts can be ended with it
        ) as process,
    ):
        try:
            _wait_ready(process, url, time.monotonic() + ready_within_s, log_path)
            yield PeerProcess(url=url, pid=process.pid)
        finally:
            _end_group(process)


def _wait_ready(
    process: "subprocess.Popen[bytes]", url: str, deadline_s: float, log_path: Path
) -> None:
    while not _is_ready(url):
        if process.poll() is not None or time.monotonic() > deadline_s:
            state = "is not ready in time" if process.returncode is None else "ended"
            tail = log_path.read_text(errors="replace")[-_LOG_TAIL:]
            raise PeerStartError(f"the peer {state}:\n{tail}")
        time.sleep(_POLL_S)


def _is_ready(url: str) -> bool:
    try:
        with _DIRECT.open(url + "/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # HTTPError, while it loads its model, is one
        return False


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    with contextlib.suppress(ProcessLookupError):  # nobody is left: the usual case
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
