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

from sessiond.gateway.limits import GatewayLimits
from sessiond.gateway.server import uvicorn_config

logger = logging.getLogger(__name__)


GONE_AFTER_S = 30.0


class PortTakenError(Exception):
    """The address can't be listened on; says which and why."""


def bind(host: str, port: int, *, gone_after_s: float = GONE_AFTER_S) -> socket.socket:
    """Take the address before slow work begins. Nothing is accepted until the server listens.

    A connection whose peer takes nothing of what was sent for `gone_after_s`, be it that it has
    vanished or that it reads no answer, ends by itself (Linux).

    Raises:
        PortTakenError: it is in use, or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with the protocol named asyncio sets TCP_NODELAY: else each answer on a connection that is
    # kept waits for the client's delayed ACK, 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":  # else TCP tries for a quarter of an hour, or for ever
            gone_after_ms = int(1000 * gone_after_s)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, gone_after_ms)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        what_helps = "--port takes another, 0 a free one"
        if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
            what_helps = "--host has to be an address of this machine"
        raise PortTakenError(
            f"can't listen on {host}:{port}: {error.strerror}; {what_helps}"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The address as a client writes it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class DrainingServer(uvicorn.Server):
    """A uvicorn server that leaves signals alone and tells when it listens.

    uvicorn's own handler closes every socket at once, with 1012 in the middle of a reply.
    """

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, listen, tell."""
        await super().startup(sockets)
        if self.started:
            self._on_listening()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHooks:
    """What happens beside serving.

    `drain` refuses new work and ends what runs, in order; after `drain_limit_s` it is cut.
    """

    on_listening: Callable[[], None]
    on_drain: Callable[[], None]
    drain: Callable[[], Awaitable[None]]
    drain_limit_s: float


async def serve_until_signal(
    app: ASGIApp, limits: GatewayLimits, listener: socket.socket, hooks: ServerHooks
) -> None:
    """Serve until SIGTERM or SIGINT, then drain, then close what is left.

    A second signal cuts the drain short, and so does its limit.

    Raises:
        SystemExit: the application did not start; uvicorn has logged why.
    """
    server = DrainingServer(uvicorn_config(app, limits), hooks.on_listening)
    loop = asyncio.get_running_loop()
    draining: asyncio.Task[None] | None = None

    async def go_down() -> None:
        try:
            await _drain(hooks)
        finally:
            server.should_exit = True

    def on_signal() -> None:
        nonlocal draining
        if draining is None:
            hooks.on_drain()
            draining = loop.create_task(go_down())
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
        logger.error("the drain is cut after %g s", hooks.drain_limit_s)  # noqa: TRY400 -- no trace helps
    except Exception:
        logger.exception("the drain failed")
