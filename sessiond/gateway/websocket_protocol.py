"""uvicorn's WebSocket protocol, with endings that also reach peers that read slowly or not at all.

What is changed, each on uvicorn 0.54 and websockets 17: a close frame waits for no flow control; a
peer that answers no pings, or reads nothing while the connection closes, is forgotten soon, not
when TCP gives it up; bad UTF-8 closes 1007 with the frame that shows it, without a traceback in the
log; a close or a ping amid a message in fragments is one like any other; fragments take the memory
of their bytes, not of their number; a denial response counts as a finished handshake; pongs that
are not read don't pile up; a peer that was just closed for a wrong frame is gone to whoever writes.
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
    """The protocol without I/O: control frames between fragments (RFC 6455, section 5.4) are such.

    The base class takes a close there for a mistake, and a ping for a part of the message, which
    may be as long as is allowed already.
    """

    def __init__(self, *, max_size: int, logger: logging.Logger) -> None:
        super().__init__(max_size=max_size + _MOST_CONTROL_BYTES, logger=logger)
        self._max_bytes = max_size

    def recv_frame(self, frame: Frame) -> None:
        """Take a frame."""
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
        elif frame.opcode not in CTRL_OPCODES:
            size = len(frame.data) + (self.current_size or 0)
            if size > self._max_bytes:
                raise PayloadTooBig(size, self._max_bytes)
        super().recv_frame(frame)


class GatewayWebSocketProtocol(WebSocketsSansIOProtocol):
    """Given to `uvicorn.Config(ws=…)`."""

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
        self._message = bytearray()  # what has come of one in fragments
        self._utf8 = _Utf8Decoder()
        self._abort_timer: TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything."""
        super().connection_lost(exc)
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self.conn.parser.close()  # a generator that refers to what refers to it

    def keepalive_timeout(self) -> None:
        """Close 1011, and drop the connection even if what was written can't be delivered."""
        super().keepalive_timeout()
        # the base class leaves the application waiting until the transport's buffer is empty,
        # which for a peer that vanished amid a stream takes a quarter of an hour
        self.disconnected = True
        self.writable.set()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1011})
        self._abort_in(ABORT_AFTER_S)

    def handle_close(self, event: Frame) -> None:
        """Answer a close frame, and drop the connection even if the answer can't be delivered."""
        super().handle_close(event)
        self._abort_in(self.close_timeout)

    def handle_parser_exception(self) -> None:
        """Close with the code of the peer's mistake, even if it does not read that."""
        super().handle_parser_exception()
        self._abort_in(self.close_timeout)

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
        """Send; a close goes out behind what a slow reader has not read, and is bounded.

        Raises:
            ClientDisconnected: the peer is gone, or was just told so for a frame that is wrong.
        """
        if self.close_sent and message["type"] == "websocket.send":
            raise ClientDisconnected  # of which the base class makes a fault of who sends
        if message["type"] == "websocket.close":
            self.writable.set()
            self._abort_in(self.close_timeout + ABORT_AFTER_S)
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True

    def handle_text(self, event: Frame) -> None:
        """Begin a text."""
        self._begin("text", event)

    def handle_bytes(self, event: Frame) -> None:
        """Begin a message of bytes."""
        self._begin("bytes", event)

    def handle_cont(self, event: Frame) -> None:
        """Go on with a message; close 1007 with the first frame that is no UTF-8."""
        if self.close_sent:
            return  # nobody is there to be given it
        if self.curr_msg_data_type == "text" and not self._is_utf8(event):
            self.conn.send_close(_NOT_UTF8, "not UTF-8")
            self.handle_parser_exception()
            return
        # joined at once: a million empty fragments are within `max_size`, and a million objects
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
        """Drop the connection then if it still is there: `close` waits for what is unread."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._abort_timer = self.loop.call_later(delay_s, self.transport.abort)
