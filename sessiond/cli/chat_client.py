"""One conversation with a server over one socket, reopened after a loss. Blocking."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from sessiond.cli.chat_turn import ChatTurn, Notice, ProtocolFaultError, TurnEnd, TurnPart
from sessiond.cli.server_api import ServerAddress, ServerError, no_answer

_RETRY_AFTER_S = (0.5, 1.0, 2.0, 4.0, 8.0)  # like the openai SDK
_POLL_S = 0.1  # delay until a cancel is noticed without incoming events
_MAX_FRAME_BYTES = 8 * 2**20
_CLOSE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """Fields of every `response.create`. None: not sent, so that the server's default applies."""

    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields to send."""
        given = {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "temperature": self.temperature,
        }
        return {name: value for name, value in given.items() if value is not None}


class ChatClient:
    """Sends turns and yields their parts. Used by one thread.

    A turn continues the last finished one by its response id, so a turn that was cut by a lost
    connection has no effect on the conversation, whatever the server did with it.
    """

    def __init__(
        self,
        address: ServerAddress,
        options: TurnOptions,
        *,
        session_id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address = address
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._socket: ClientConnection | None = None
        self._open = ExitStack()  # closes the socket
        self.session_id = session_id
        self.tip: str | None = None

    def connect(self) -> None:
        """Open the socket with one attempt.

        Raises:
            ServerError: no server listens, or it refused the socket.
        """
        try:
            self._socket = self._open.enter_context(
                connect(
                    self._address.socket,
                    compression=None,
                    max_size=_MAX_FRAME_BYTES,
                    close_timeout=_CLOSE_TIMEOUT_S,
                    proxy=None if self._address.is_loopback else True,
                    user_agent_header="sessiond-chat",
                    additional_headers=self._address.headers,
                )
            )
        except InvalidStatus as error:
            raise ServerError(_refused(error), error.response.status_code) from error
        except (OSError, WebSocketException, TimeoutError) as error:
            raise no_answer(self._address, error) from error

    def close(self) -> None:
        """Close the socket."""
        self._socket = None
        self._open.close()

    def restart(self, session_id: str | None) -> None:
        """Continue a session in its current state, or a new one if `session_id` is None."""
        self.session_id = session_id
        self.tip = None

    def ask(self, text: str, *, cancel_wanted: Callable[[], bool]) -> Iterator[TurnPart]:
        """Run one turn; the last part is its `TurnEnd`.

        If the connection is lost before the server accepted the turn, it is reopened and the turn
        is sent again. This is safe: a second continuation does not change a response.

        Raises:
            ServerError: the connection is lost and can't be reopened.
        """
        if self._socket is None:
            yield from self._reconnect()
        try:
            turn = self._send(text)
        except ConnectionClosed as closed:
            yield from self._reconnect(closed)
            turn = self._send(text)
        yield from self._receive(turn, cancel_wanted)
        if turn.end is not None and turn.end.outcome == "cut" and turn.response_id is None:
            yield from self._reconnect()
            turn = self._send(text)
            yield from self._receive(turn, cancel_wanted)
        self._settle(turn)
        yield turn.end or turn.cut("the reply is incomplete")

    def _send(self, text: str) -> ChatTurn:
        request: dict[str, Any] = {"type": "response.create", "input": text}
        request |= self._options.fields()
        if self.tip is not None:
            request["previous_response_id"] = self.tip
        elif self.session_id is not None:
            request["conversation"] = self.session_id
        self._connection.send(json.dumps(request, ensure_ascii=False))
        return ChatTurn(sent_at_s=self._clock())

    def _receive(self, turn: ChatTurn, cancel_wanted: Callable[[], bool]) -> Iterator[TurnPart]:
        asked_to_cancel = False
        while turn.end is None:
            if not asked_to_cancel and turn.response_id and cancel_wanted():
                asked_to_cancel = True
                self._cancel(turn.response_id)
            try:
                frame = self._connection.recv(timeout=_POLL_S)
                parts = turn.feed(frame, at_s=self._clock())
                yield from (part for part in parts if not isinstance(part, TurnEnd))
            except TimeoutError:
                continue
            except ConnectionClosed as closed:
                turn.cut(_closed(closed))
                self.close()
            except ProtocolFaultError as fault:
                turn.cut(f"the server sent an invalid frame ({fault})")
                self.close()  # the server rolls the turn back

    def _cancel(self, response_id: str) -> None:
        try:
            self._connection.send(
                json.dumps({"type": "response.cancel", "response_id": response_id})
            )
        except ConnectionClosed:
            return  # the next `recv` reports the loss

    def _settle(self, turn: ChatTurn) -> None:
        if turn.end is None or turn.end.outcome in ("cut", "refused"):
            return
        self.tip = turn.end.tip or self.tip
        self.session_id = turn.session_id or self.session_id

    def _reconnect(self, closed: ConnectionClosed | None = None) -> Iterator[Notice]:
        self.close()
        if closed is not None:
            yield Notice(text=f"{_closed(closed)}; reconnecting")
        for wait_s in _RETRY_AFTER_S:
            try:
                self.connect()
            except ServerError as error:
                if error.status == HTTPStatus.UNAUTHORIZED:
                    raise  # the key was revoked: a retry can't succeed
                yield Notice(text=f"{error}; retrying in {wait_s:g} s")
                self._sleep(wait_s)
            else:
                return
        self.connect()

    @property
    def _connection(self) -> ClientConnection:
        if self._socket is None:
            raise ServerError("not connected")
        return self._socket


def _closed(closed: ConnectionClosed) -> str:
    if closed.rcvd is None:
        return "the connection was lost"
    reason = f" {closed.rcvd.reason}" if closed.rcvd.reason else ""
    return f"the server closed the connection ({closed.rcvd.code}{reason})"


def _refused(error: InvalidStatus) -> str:
    body = (error.response.body or b"")[:300].decode(errors="replace").strip()
    try:
        body = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        body = body or error.response.reason_phrase
    return f"the server refused the socket ({error.response.status_code}): {body}"
