"""uvicorn's WebSocket protocol, with closing that also works for slow or vanished peers.

Changes to uvicorn 0.54 with websockets 17:
- A close frame does not wait for flow control.
- A peer that answers no pings, or reads nothing while the connection closes, is dropped soon, not
  when TCP times out.
- Invalid UTF-8 closes with 1007 at the first invalid frame, without a traceback in the log.
- A close or a ping between fragments is handled as a control frame.
- Fragments take memory by their bytes, not by their number.
- A denial response completes the handshake.
- Unread pongs don't accumulate.
- Writing to a peer that was just closed for an invalid frame raises a disconnect.
"""

import codecs
import logging
from asyncio import TimerHandle
from typing import Any, ClassVar, Literal

from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import PayloadTooBig
from websockets.frames import CTRL_OPCODES, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

ABORT_AFTER_S = 1.0
_MOST_CONTROL_BYTES = 125
_NOT_UTF8 = 1007

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class GatewayServerProtocol(ServerProtocol):
    """The protocol without I/O, with control frames between fragments (RFC 6455, section 5.4).

    The base class treats a close there as an error, and counts a ping as a part of the message,
    which may already have the maximum length.
    """

    def __init__(self, *, max_size: int, logger: logging.Logger) -> None:
        super().__init__(max_size=max_size + _MOST_CONTROL_BYTES, logger=logger)
        self._max_bytes = max_size

    def recv_frame(self, frame: Frame) -> None:
        """Process a frame."""
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
        elif frame.opcode not in CTRL_OPCODES:
            size = len(frame.data) + (self.current_size or 0)
            if size > self._max_bytes:
                raise PayloadTooBig(size, self._max_bytes)
        super().recv_frame(frame)


class GatewayWebSocketProtocol(WebSocketsSansIOProtocol):
    """The protocol class for `uvicorn.Config(ws=…)`."""

    close_within_s: ClassVar[float] = 5.0
    _owed_pong: bytes = b""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = GatewayServerProtocol(
            max_size=config.ws_max_size, logger=logging.getLogger("uvicorn.error")
        )
        self.close_timeout = self.close_within_s
        self._message = bytearray()  # fragments received so far
        self._utf8 = _Utf8Decoder()
        self._abort_timer: TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer and close the parser."""
        super().connection_lost(exc)
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        connection = self.conn
        connection.parser.close()  # a generator in a reference cycle

    def keepalive_timeout(self) -> None:
        """Close with 1011 and drop the connection even if buffered data can't be delivered."""
        super().keepalive_timeout()
        # the base class makes the application wait until the transport's buffer is empty, which
        # takes a quarter of an hour for a peer that vanished in the middle of a stream
        self.disconnected = True
        self.writable.set()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1011})
        self._abort_in(ABORT_AFTER_S)

    def handle_close(self, event: Frame) -> None:
        """Answer a close frame, and drop the connection even if the answer can't be delivered."""
        super().handle_close(event)
        self._abort_in(self.close_timeout)

    def handle_parser_exception(self) -> None:
        """Close with the code of the protocol error, even if the peer does not read."""
        super().handle_parser_exception()
        self._abort_in(self.close_timeout)

    def handle_ping(self) -> None:
        """Answer a ping; while the peer does not read, only the last one (RFC 6455, 5.5.3).

        Pongs to all pings would let the peer fill the memory.
        """
        if self.writable.is_set() or self.conn.state is not State.OPEN:
            super().handle_ping()
        elif pongs := self.conn.data_to_send():  # pongs to all pings of the bytes just received
            self._owed_pong = pongs[-1]

    def resume_writing(self) -> None:
        """Send the pending pong when the peer reads again."""
        super().resume_writing()
        owed, self._owed_pong = self._owed_pong, b""
        if owed and self.conn.state is State.OPEN:
            self.transport.write(owed)

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message; a close is queued behind unread data, and its wait is bounded.

        Raises:
            ClientDisconnected: the peer is gone, or was just closed for an invalid frame.
        """
        if self.close_sent and message["type"] == "websocket.send":
            raise ClientDisconnected  # the base class would raise an error of the sender
        if message["type"] == "websocket.close":
            self.writable.set()
            self._abort_in(self.close_timeout + ABORT_AFTER_S)
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True

    def handle_text(self, event: Frame) -> None:
        """Begin a text message."""
        self._begin("text", event)

    def handle_bytes(self, event: Frame) -> None:
        """Begin a binary message."""
        self._begin("bytes", event)

    def handle_cont(self, event: Frame) -> None:
        """Continue a message; close with 1007 at the first frame that is not UTF-8."""
        if self.close_sent:
            return  # the connection is closing
        if self.curr_msg_data_type == "text" and not self._is_utf8(event):
            self.conn.send_close(_NOT_UTF8, "not UTF-8")
            self.handle_parser_exception()
            return
        # joined at once: a million empty fragments fit in `max_size` but would be a million objects
        self._message += event.data
        if event.fin:
            self.frames, self._message = [bytes(self._message)], bytearray()
            self.send_receive_event_to_app()

    def _begin(self, kind: Literal["text", "bytes"], event: Frame) -> None:
        self.curr_msg_data_type = kind
        self._message = bytearray()
        self._utf8.reset()
        self.handle_cont(event)

    def _is_utf8(self, event: Frame) -> bool:
        try:
            self._utf8.decode(event.data, final=event.fin)
        except UnicodeDecodeError:
            return False
        return True

    def _abort_in(self, delay_s: float) -> None:
        """Drop the connection after `delay_s` if still open: `close` waits for unread data."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._abort_timer = self.loop.call_later(delay_s, self.transport.abort)
