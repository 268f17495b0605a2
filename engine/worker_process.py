"""Runs an engine loop in its own process, behind a local socket. Ends with its parent."""

import argparse
import contextlib
import ctypes
import faulthandler
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError, ModelFileError, TemplateError
from engine.ipc.command_reader import Emit, Loop, OutputBuffer, drive
from engine.ipc.framing import (
    STACKS_SIGNAL,
    EngineInput,
    EngineOutput,
    FrameError,
    FromWorker,
    Launch,
    OutputBatch,
    Ping,
    Pong,
    Progress,
    Ready,
    Refused,
    encode,
    read_to_worker,
)
from engine.ipc.messages import EngineInfo
from engine.system.heap import ShortPauses, trim_heap

# Builds the driven loop. `Launch.loop_factory` names a replacement for the model.
ConfiguredFactory = Callable[[EngineConfig, Emit], tuple[Loop, EngineInfo]]

_READ_BYTES = 256 * 1024
_GONE = (BrokenPipeError, ConnectionResetError)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class SocketTransport:
    """A connected stream socket as a `Transport`, with frames.

    A full socket makes `send` wait, so a parent that does not read blocks the engine.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = read_to_worker()
        # Not select, which accepts no descriptor above 1023: a gateway with many sockets has those.

        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)

    def receive_launch(self) -> Launch | None:
        """Return the first message; None when the parent has gone.

        Raises:
            FrameError: the first message is not a launch.
        """
        messages = self._receive(wait_s=None)
        if messages is None:
            return None
        match messages:
            case [Launch() as launch]:
                return launch
            case _:
                raise FrameError(f"expected a launch, got {messages!r}")

    def receive(self, *, wait_s: float | None) -> Sequence[EngineInput] | None:
        """See `engine.ipc.command_reader.Transport`.

        Raises:
            FrameError: the parent sent a second launch, or an invalid frame.
        """
        messages = self._receive(wait_s=wait_s)
        if messages is None:
            return None
        inputs: list[EngineInput] = []
        for message in messages:
            if isinstance(message, Launch):
                raise FrameError("a second launch")
            inputs.append(message)
        return inputs

    def send(self, outputs: list[EngineOutput]) -> None:
        """See `engine.ipc.command_reader.Transport`. Output is lost once the parent has gone."""
        with contextlib.suppress(*_GONE):  # `receive` reports it, after all earlier input
            self.say(OutputBatch(outputs=outputs))

    def say(self, message: FromWorker) -> None:
        """Write one whole message."""
        self._connection.sendall(encode(message))

    def _receive(self, *, wait_s: float | None) -> list[Launch | EngineInput] | None:
        """All waiting input; None when the parent has gone, after its last messages."""
        messages: list[Launch | EngineInput] = []
        try:
            while True:
                if wait_s != 0 and not messages:
                    self._readable.poll(None if wait_s is None else 1000 * wait_s)
                data = self._connection.recv(_READ_BYTES, socket.MSG_DONTWAIT)
                if not data:
                    return messages or None
                for message in self._reader.feed(data):
                    if isinstance(message, Ping):
                        self.say(Pong())
                    else:
                        messages.append(message)
        except BlockingIOError:
            return messages
        except _GONE:  # it had not read all messages sent to it
            return messages or None


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one engine on the inherited socket; return 0 when it closed, 1 on failure."""
    parser = argparse.ArgumentParser(prog="engine.worker_process")
    parser.add_argument("--fd", type=int, required=True, help="inherited end of the socket pair")
    parser.add_argument("--parent", type=int, required=True, help="process id of the parent")
    options = parser.parse_args(arguments)
    _bind_to_parent(options.parent)
    # The parent sends this signal before it kills a hung engine, to learn where it hangs.
    faulthandler.register(STACKS_SIGNAL, all_threads=True)
    connection = socket.socket(fileno=options.fd)
    connection.set_inheritable(False)
    try:
        return _serve(SocketTransport(connection))
    except _GONE:
        return 0  # the parent has gone
    finally:
        connection.close()


def _bind_to_parent(parent: int) -> None:
    """End with the parent, and ignore the signals that stop it.

    Ctrl-C and a service manager signal every process of the group; the parent drains first, and
    running turns need the engine for that. The closed socket or SIGKILL stops the engine.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before prctl; elsewhere only the socket reports it
        sys.exit(0)


def _serve(transport: SocketTransport) -> int:
    launch = transport.receive_launch()
    if launch is None:
        return 0
    output_buffer = OutputBuffer()
    try:
        engine_loop, info = _factory(launch, transport)(launch.config, output_buffer.put)
    except Exception as error:  # whatever the error, the parent receives it
        if not isinstance(error, EngineError | OSError | MemoryError):
            traceback.print_exc()
        transport.say(_refusal(error))
        return 1
    trim_heap()
    ShortPauses().begin()
    transport.say(Ready(info=info))
    drive(engine_loop, output_buffer, transport)
    return 0


def _factory(launch: Launch, transport: SocketTransport) -> ConfiguredFactory:
    if launch.loop_factory:
        module, _, function = launch.loop_factory.partition(":")
        stand_in: ConfiguredFactory = getattr(importlib.import_module(module), function)
        return stand_in
    from engine.bootstrap import build_engine

    return partial(build_engine, report=lambda text: transport.say(Progress(text=text)))


def _refusal(error: Exception) -> Refused:
    match error:
        case ConfigError(name=name, value=value, allowed=allowed):
            return Refused(
                kind="setting",
                message=str(error),
                setting=name,
                value=str(value),
                allowed=allowed,
            )
        case ModelFileError():
            return Refused(kind="model_file", message=str(error))
        case TemplateError():
            return Refused(kind="template", message=str(error))
        case EngineError():
            return Refused(kind="other", message=str(error))
        case MemoryError():
            return Refused(kind="other", message=f"not enough memory: {error}")
        case _:
            return Refused(kind="other", message=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(main())
