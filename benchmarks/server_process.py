"""A `sessiond serve` in a process of its own, on a free port, with its own data folder."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.model.kernels.library import ISA_VARIABLE

_READY_WITHIN_S = 240.0
_POLL_S = 0.05
_LEAST_PORT = 10_000
_GIVEN_PORTS = 32_768  # Linux gives connections those from here on
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

NO_REUSE = ("--no-retain-kv", "--no-enable-prefix-caching")
"""Flags of a server that keeps nothing between turns and recomputes every history."""


class ServerProcess:
    """One server. `start`, then `stop` or `kill`; may be started again on the same data and port.

    `db`: its database; None: a file in the folder. `files`: its limit of file descriptors; None:
    this process's.
    """

    def __init__(
        self,
        folder: Path,
        flags: Sequence[str] = (),
        *,
        db: str | None = None,
        files: int | None = None,
    ) -> None:
        self._folder = folder
        self._flags = list(flags)
        self._db = db or f"sqlite+aiosqlite:///{folder / 'sessiond.db'}"
        self._files = files
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.log_path = folder / "server.log"
        self.url = ""

    def start(self) -> None:
        """Start and wait until turns are taken.

        Raises:
            RuntimeError: the server ended or did not become ready; holds its output.
        """
        self.url = f"http://127.0.0.1:{self._port}"
        command = [sys.executable, "-m", "sessiond", "serve", "--port", str(self._port)]
        command += [*self._flags, "--db", self._db]
        if self._files is not None:  # the shell's own process becomes the server
            command = ["sh", "-c", f'ulimit -n {self._files}; exec "$@"', "sh", *command]
        environment = {
            name: value
            for name, value in os.environ.items()
            if name == ISA_VARIABLE or not name.startswith("SESSIOND_")
        }
        environment |= {"XDG_DATA_HOME": str(self._folder), "PYTHONUNBUFFERED": "1"}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 -- our own command
                command, stdout=log, stderr=log, env=environment
            )
        self._wait_ready(time.monotonic() + _READY_WITHIN_S)

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The running process."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    @property
    def log(self) -> str:
        """Everything the server printed."""
        return self.log_path.read_text(errors="replace")

    def get(self, path: str) -> dict[str, Any]:
        """Answer of a GET request as an object."""
        answer: dict[str, Any] = json.loads(self.get_text(path))
        return answer

    def put(self, path: str, body: dict[str, Any]) -> None:
        """Send a PUT request with an object."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(  # noqa: S310 -- our own server's address
            self.url + path, json.dumps(body).encode(), headers, method="PUT"
        )
        with _DIRECT.open(request, timeout=30):
            pass

    def get_text(self, path: str) -> str:
        """Answer of a GET request."""
        with _DIRECT.open(self.url + path, timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    def stop(self) -> int:
        """Ask the server to end and wait. Returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def kill(self) -> None:
        """End the whole server, the engine's process included, without a word to it."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self.process.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        self.process.wait()

    def _wait_ready(self, deadline_s: float) -> None:
        while not self.is_ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log}")
            if time.monotonic() > deadline_s:
                self.stop()
                raise RuntimeError(f"the server did not become ready:\n{self.log}")
            time.sleep(_POLL_S)

    def is_ready(self) -> bool:
        """Whether turns are taken."""
        try:
            return "error" not in self.get("/health/ready")
        except (OSError, ValueError, urllib.error.HTTPError):
            return False


@contextlib.contextmanager
def running_server(
    folder: Path, flags: Sequence[str] = (), *, db: str | None = None, files: int | None = None
) -> Iterator[ServerProcess]:
    """Run a server for the time of a `with` block."""
    folder.mkdir(parents=True, exist_ok=True)
    server = ServerProcess(folder, flags, db=db, files=files)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """A port of the loopback that nobody listens on, and that no connection is given.

    So it is still free when a server binds it, and while one is down for a moment.
    """
    while True:
        port = _LEAST_PORT + secrets.randbelow(_GIVEN_PORTS - _LEAST_PORT)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
