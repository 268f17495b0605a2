"""uvicorn's HTTP protocol, which waits for no request for ever.

On uvicorn 0.54 a peer that connects and says nothing, or begins a request and vanishes, keeps its
connection, and a file of the process, until the server ends.
"""

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class GatewayHttpProtocol(H11Protocol):
    """Drops a connection whose request has not come whole `request_timeout_s` after it began.

    The first begins with the connection.
    """

    request_timeout_s: ClassVar[float]
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what came, and wait for the rest."""
        super().data_received(data)
        is_upgraded = self.transport.get_protocol() is not self
        if is_upgraded or self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._wait_no_more()
        elif self._waiting is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything."""
        super().connection_lost(exc)
        self._wait_no_more()

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self.request_timeout_s, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def http_protocol(request_timeout_s: float) -> type[GatewayHttpProtocol]:
    """Make a protocol for `uvicorn.Config(http=…)`, which has no place for such a bound."""
    fields = {"request_timeout_s": request_timeout_s}
    return type("GatewayHttpProtocol", (GatewayHttpProtocol,), fields)
