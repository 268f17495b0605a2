"""One engine in a child process, and the socket to it. Asyncio thread only."""

import asyncio
import collections
import contextlib
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable
from pathlib import Path

from engine.errors import EngineUnavailableError
from engine.ipc.framing import (
    STACKS_SIGNAL,
    FrameError,
    FromWorker,
    ToWorker,
    encode,
    read_from_worker,
)

log = logging.getLogger(__name__)

# Limit of commands that wait for an engine in a long step; more means that it hangs.
MAX_UNSENT_BYTES = 256 * 2**20
_LAST_LINES = 20
_LAST_LINES_S = 1.0


class WorkerChild(asyncio.Protocol):
    """One child process. `on_message` receives its messages, `on_gone` is called once on its loss.

    A closed socket reports a child's death first, also after SIGKILL.
    """

    def __init__(
        self, on_message: Callable[[FromWorker], None], on_gone: Callable[[], None]
    ) -> None:
        self._on_message = on_message
        self._on_gone = on_gone
        self._reader = read_from_worker()
        self._transport: asyncio.Transport | None = None
        self._process: Process | None = None
        self._log_task: asyncio.Task[None] | None = None
        self._last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)

    async def start(self) -> None:
        """Spawn the process; it waits for a `Launch`."""
        parent_end, child_end = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # the path is set by _environment
                "-m",
                "engine.worker_process",
                f"--fd={child_end.fileno()}",
                f"--parent={os.getpid()}",
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                env=_environment(),
                pass_fds=[child_end.fileno()],
                start_new_session=True,  # Ctrl-C is for the parent
            )
        except BaseException:
            parent_end.close()
            raise
        finally:
            child_end.close()
        self._log_task = asyncio.create_task(self._log_output(self._process))
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=parent_end)

    @property
    def pid(self) -> int:
        """Process id.

        Raises:
            EngineUnavailableError: the child has not started.
        """
        if self._process is None:
            raise EngineUnavailableError("the engine process has not started")
        return self._process.pid

    @property
    def last_output(self) -> str:
        """The last lines that the child printed."""
        return "\n".join(self._last_lines)

    @property
    def takes_more(self) -> bool:
        """False when so much is unsent that the child must hang in a step."""
        sent = self._transport
        return sent is not None and sent.get_write_buffer_size() <= MAX_UNSENT_BYTES

    def say(self, message: ToWorker) -> None:
        """Send a message, in order. Lost when the child has ended, which `on_gone` reports."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    async def end(self, grace_s: float) -> int:
        """Close the child's socket, which ends it after its step; kill it if it takes longer.

        Returns:
            Its exit code; negative for a signal; 0 for a child that never ran.
        """
        if self._transport is not None:
            self._transport.close()
        if self._process is None:
            return 0
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            self.kill()
        code = await self._process.wait()
        if self._log_task is not None:  # a process that the child started may hold the pipe open
            await asyncio.wait([self._log_task], timeout=_LAST_LINES_S)
            self._log_task.cancel()
        return code

    def kill(self) -> None:
        """Kill the child now."""
        self._signal(signal.SIGKILL)

    def print_stacks(self) -> None:
        """Make the child print its threads' stacks; a stopped process prints nothing."""
        self._signal(STACKS_SIGNAL)

    def _signal(self, number: signal.Signals) -> None:
        # Not Process.kill: that polls first, and so steals the exit code from asyncio's watcher.
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def _log_output(self, process: Process) -> None:
        """Copy the child's output to the log, line by line."""
        if process.stdout is None:
            return
        while line := await _read_line(process.stdout):
            text = line.decode(errors="replace").rstrip()
            self._last_lines.append(text)
            log.warning("engine[%d] %s", process.pid, text)

    # --- asyncio.Protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        if isinstance(transport, asyncio.Transport):  # a socket's always is
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            for message in self._reader.feed(data):
                self._on_message(message)
        except FrameError:
            log.exception("the engine process sent an invalid message and is killed")
            self.kill()

    def connection_lost(self, _error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._on_gone()


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """One line; an overlong one comes in pieces."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(error.consumed)


def _environment() -> dict[str, str]:
    """This environment with this import path, so that the child runs the same code anywhere.

    OpenMP threads sleep while they wait: the gateway runs on the same cores, and spinning threads
    take time from it and from each other (two busy cores: 600 ms for a step of 150 ms).
    """
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    required = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, **required}
