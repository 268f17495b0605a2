"""uvicorn's HTTP protocol with a timeout for incomplete requests.

On uvicorn 0.54 a peer that connects and sends nothing, or vanishes in the middle of a request,
keeps its connection, and a file descriptor of the process, until the server ends.
"""

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class GatewayHttpProtocol(H11Protocol):
    """Drops a connection whose request is incomplete `request_timeout_s` after it began.

    The first request begins with the connection.
    """

    request_timeout_s: ClassVar[float]
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Process received bytes; stop the timeout at a complete request, start it at a new one."""
        super().data_received(data)
        is_upgraded = self.transport.get_protocol() is not self
        if is_upgraded or self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._wait_no_more()
        elif self._waiting is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        super().connection_lost(exc)
        self._wait_no_more()

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self.request_timeout_s, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def http_protocol(request_timeout_s: float) -> type[GatewayHttpProtocol]:
    """Make a protocol class for `uvicorn.Config(http=…)`, which has no such setting."""
    fields = {"request_timeout_s": request_timeout_s}
    return type("GatewayHttpProtocol", (GatewayHttpProtocol,), fields)
