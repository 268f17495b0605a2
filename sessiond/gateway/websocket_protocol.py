"""uvicorn's WebSocket protocol, with endings that also reach peers that read slowly or not at all.

What is changed, each on uvicorn 0.54: a close frame waits for no flow control; a peer that answers
no pings is forgotten at once, not when TCP gives it up; bad UTF-8 closes 1007 without a traceback
in the log; a denial response counts as a finished handshake; pongs that are not read don't
pile up.
"""

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

ABORT_AFTER_S = 1.0


class GatewayWebSocketProtocol(WebSocketsSansIOProtocol):
    """Given to `uvicorn.Config(ws=…)`."""

    close_timeout: float = 5.0
    _owed_pong: bytes = b""

    def keepalive_timeout(self) -> None:
        """Close 1011, and drop the connection even if what was written can't be delivered."""
        super().keepalive_timeout()
        # the base class leaves the application waiting until the transport's buffer is empty,
        # which for a peer that vanished amid a stream takes a quarter of an hour
        self.disconnected = True
        self.writable.set()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1011})
        self.loop.call_later(ABORT_AFTER_S, self.transport.abort)

    def handle_ping(self) -> None:
        """Answer; of pings that come while the peer does not read, only the last (RFC 6455, 5.5.3).

        The pongs to all of them would be as much memory as the peer cares to send pings.
        """
        if self.writable.is_set() or self.conn.state is not State.OPEN:
            super().handle_ping()
        elif pongs := self.conn.data_to_send():  # those to all pings of what was just received
            self._owed_pong = pongs[-1]

    def resume_writing(self) -> None:
        """The peer reads again: give it the pong that it is owed."""
        super().resume_writing()
        owed, self._owed_pong = self._owed_pong, b""
        if owed and self.conn.state is State.OPEN:
            self.transport.write(owed)

    async def send(self, message: ASGISendEvent) -> None:
        """Send; a close goes out behind what a slow reader has not read, and is bounded."""
        if message["type"] == "websocket.close":
            self.writable.set()
            self.loop.call_later(self.close_timeout + ABORT_AFTER_S, self.transport.abort)
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True

    def send_receive_event_to_app(self) -> None:
        """Pass a whole message on, or close 1007 (RFC 6455, section 8.1)."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(1007, "not UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()
