"""Runs the gateway's server: binds early, drains on a signal, then exits."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from sessiond.api.limits import GatewayLimits
from sessiond.api.server import GatewayServer, uvicorn_config

logger = logging.getLogger(__name__)

GONE_AFTER_S = 30.0


class PortTakenError(Exception):
    """The address can't be bound; the message names it and the reason."""


def bind(host: str, port: int, *, gone_after_s: float = GONE_AFTER_S) -> socket.socket:
    """Bind the address before slow work begins. Connections wait until the server listens.

    A connection whose peer acknowledges no data for `gone_after_s`, because it has vanished or
    does not read, is closed by the system (Linux).

    Raises:
        PortTakenError: the address is in use, or not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with an explicit protocol asyncio sets TCP_NODELAY; without it each response on a keep-alive
    # connection waits for the client's delayed ACK, 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":  # by default TCP retries for a quarter of an hour or longer
            gone_after_ms = int(1000 * gone_after_s)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, gone_after_ms)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        hint = "choose another with --port, 0 for a free one"
        if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
            hint = "--host must be an address of this machine"
        raise PortTakenError(f"cannot listen on {host}:{port}: {error.strerror}; {hint}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL for clients."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class DrainingServer(GatewayServer):
    """A uvicorn server that handles no signals and calls back when it listens.

    uvicorn's signal handler closes every socket at once with 1012, in the middle of a reply.
    """

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, listen, call `on_listening`."""
        await super().startup(sockets)
        if self.started:
            self._on_listening()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHooks:
    """Callbacks of the server's life cycle.

    `drain` refuses new work and ends running work in order; it is cancelled after
    `drain_limit_s`.
    """

    on_listening: Callable[[], None]
    on_drain: Callable[[], None]
    drain: Callable[[], Awaitable[None]]
    drain_limit_s: float


async def serve_until_signal(
    app: ASGIApp, limits: GatewayLimits, listener: socket.socket, hooks: ServerHooks
) -> None:
    """Serve until SIGTERM or SIGINT, then drain, then close the remaining connections.

    A second signal or the limit cancels the drain.

    Raises:
        SystemExit: the application did not start; uvicorn has logged why.
    """
    server = DrainingServer(uvicorn_config(app, limits), hooks.on_listening)
    loop = asyncio.get_running_loop()
    draining: asyncio.Task[None] | None = None

    async def drain_and_exit() -> None:
        try:
            await _drain(hooks)
        finally:
            server.should_exit = True

    def on_signal() -> None:
        nonlocal draining
        if draining is None:
            hooks.on_drain()
            draining = loop.create_task(drain_and_exit())
        else:
            draining.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await server.serve(sockets=[listener])
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if draining is not None:
            await asyncio.gather(draining, return_exceptions=True)


async def _drain(hooks: ServerHooks) -> None:
    try:
        async with asyncio.timeout(hooks.drain_limit_s):
            await hooks.drain()
    except TimeoutError:
        logger.error("the drain was cancelled after %g s", hooks.drain_limit_s)  # noqa: TRY400 -- no trace helps
    except Exception:
        logger.exception("the drain failed")
