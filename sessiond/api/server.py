"""The uvicorn configuration of the gateway, and its HTTP protocol that bounds slow requests."""

import asyncio
from typing import ClassVar

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from sessiond.api.limits import MAX_HEAD_BYTES, GatewayLimits
from sessiond.api.websocket_protocol import GatewayWebSocketProtocol

BACKLOG = 2048
CLOSE_GRACE_S = 5


class GatewayHttpProtocol(H11Protocol):
    """Drops a connection whose request is incomplete `request_timeout_s` after it began.

    The first request begins with the connection.
    """

    request_timeout_s: ClassVar[float]
    _timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self._start_timeout()

    def data_received(self, data: bytes) -> None:
        """Process received bytes; stop the timeout at a complete request, start it at a new one."""
        super().data_received(data)
        is_upgraded = self.transport.get_protocol() is not self
        if is_upgraded or self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._stop_timeout()
        elif self._timeout is None:
            self._start_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        super().connection_lost(exc)
        self._stop_timeout()

    def _start_timeout(self) -> None:
        self._timeout = self.loop.call_later(self.request_timeout_s, self.transport.abort)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


def http_protocol(request_timeout_s: float) -> type[GatewayHttpProtocol]:
    """Make a protocol class for `uvicorn.Config(http=…)`, which has no such setting."""
    fields = {"request_timeout_s": request_timeout_s}
    return type("GatewayHttpProtocol", (GatewayHttpProtocol,), fields)


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
        backlog=BACKLOG,
        timeout_graceful_shutdown=CLOSE_GRACE_S,
    )
