"""The uvicorn configuration of the gateway, and its HTTP protocol that bounds slow requests."""

import asyncio
import errno
import logging
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any, ClassVar

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from sessiond.api.limits import MAX_HEAD_BYTES, GatewayLimits
from sessiond.api.websocket_protocol import GatewayWebSocketProtocol

ACCEPTED_AT_ONCE = 2
"""Connections per turn of the event loop. asyncio tries so many also when it has no descriptor.

A connection is seen one turn after it was accepted and closed one turn later, so three times as
many descriptors may be in use before the first is free again.
"""

CLOSE_GRACE_S = 5
_BACKLOG = 2048  # connections that wait in the kernel to be accepted
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
MAX_SILENT_PER_ADDRESS = 512  # a proxy in front sends each request at once
_SPARE_FILES = 10 + 3 * ACCEPTED_AT_ONCE  # for the database, tiers, a new engine
_CLOSED_AT_ONCE = 8
_LOG_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class Throttle:
    """Says once a minute that a log line is due."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s: float | None = None

    def is_due(self) -> bool:
        """Whether a minute has passed since the last time that this was true."""
        now_s = self._clock()
        if self._last_s is not None and now_s - self._last_s < _LOG_EVERY_S:
            return False
        self._last_s = now_s
        return True


class SilentConnections:
    """Connections that have sent no whole request yet, oldest first. Asyncio thread only.

    Nobody needs a key to open one, so the oldest are closed when their address has more than
    `max_per_address`, and when a new connection's descriptor is beyond `max_file`: descriptors are
    given out lowest first.
    """

    def __init__(
        self,
        *,
        max_per_address: int = MAX_SILENT_PER_ADDRESS,
        max_file: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_file = max(1, files - _SPARE_FILES) if max_file is None else max_file
        self._max_per_address = max_per_address
        self._log = Throttle(clock)
        self._address_of: dict[asyncio.Transport, str] = {}
        self._count: Counter[str] = Counter()
        self._closed = 0

    def __len__(self) -> int:
        return len(self._address_of)

    def add(self, transport: asyncio.Transport, address: str, file: int) -> None:
        """Add a new connection; close the oldest if there are too many."""
        self._address_of[transport] = address
        self._count[address] += 1
        if file > self._max_file:
            # Several: the next connections get their low descriptors, and so tell nothing.
            for oldest in list(islice(self._address_of, _CLOSED_AT_ONCE)):
                self._close(oldest)
        elif self._count[address] > self._max_per_address:
            own = (one for one, its in self._address_of.items() if its == address)
            self._close(next(own))

    def remove(self, transport: asyncio.Transport) -> None:
        """Remove a connection that has sent a request, or was lost."""
        address = self._address_of.pop(transport, None)
        if address is None:
            return
        self._count[address] -= 1
        if not self._count[address]:
            del self._count[address]

    def _close(self, transport: asyncio.Transport) -> None:
        self.remove(transport)
        transport.abort()
        self._closed += 1
        if self._log.is_due():
            _log.warning(
                "%d connections closed before they sent a request: too many are open "
                "(at most %d of one address, and descriptors up to %d)",
                self._closed,
                self._max_per_address,
                self._max_file,
            )
            self._closed = 0


class GatewayHttpProtocol(H11Protocol):
    """Drops a connection whose request is incomplete `request_timeout_s` after it began.

    The first request begins with the connection.
    """

    request_timeout_s: ClassVar[float]
    silent: ClassVar[SilentConnections]
    _timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self._start_timeout()
        peer = transport.get_extra_info("peername")
        connection = transport.get_extra_info("socket")
        file = connection.fileno() if connection else 0
        self.silent.add(transport, peer[0] if peer else "", file)

    def data_received(self, data: bytes) -> None:
        """Process received bytes; stop the timeout at a complete request, start it at a new one."""
        super().data_received(data)
        is_upgraded = self.transport.get_protocol() is not self
        if is_upgraded or self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._stop_timeout()
            self.silent.remove(self.transport)
        elif self._timeout is None:
            self._start_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        super().connection_lost(exc)
        self._stop_timeout()
        self.silent.remove(self.transport)

    def _start_timeout(self) -> None:
        self._timeout = self.loop.call_later(self.request_timeout_s, self.transport.abort)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


def http_protocol(request_timeout_s: float) -> type[GatewayHttpProtocol]:
    """Make a protocol class for `uvicorn.Config(http=…)`, which has no such setting."""
    fields = {"request_timeout_s": request_timeout_s, "silent": SilentConnections()}
    return type("GatewayHttpProtocol", (GatewayHttpProtocol,), fields)


class GatewayServer(uvicorn.Server):
    """A uvicorn server that accepts few connections at a time from a long queue of the kernel."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and listen."""
        asyncio.get_running_loop().set_exception_handler(QuietAccept())
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # uvicorn's is the number that asyncio accepts at once


class QuietAccept:
    """An exception handler of the event loop: one log line a minute when accepting must pause.

    asyncio pauses for a second and then calls the handler again, with a traceback.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = Throttle(clock)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """See `asyncio.loop.set_exception_handler`."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _EXHAUSTED:
            loop.default_exception_handler(context)
            return
        if self._log.is_due():
            _log.error("new connections wait: %s; open sockets go on", error.strerror)


def uvicorn_config(app: ASGIApp, limits: GatewayLimits) -> uvicorn.Config:
    """Configure frame size, pings and closing. The caller handles signals and listening."""
    return uvicorn.Config(
        app,
        lifespan="on",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        http=http_protocol(limits.request_timeout_s),
        ws=GatewayWebSocketProtocol,
        ws_per_message_deflate=False,  # costs 40 KiB per idle socket, for small deltas of text
        ws_max_size=limits.max_frame_bytes,
        ws_ping_interval=limits.ping_interval_s,
        ws_ping_timeout=limits.ping_timeout_s,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=CLOSE_GRACE_S,
    )
