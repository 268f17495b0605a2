"""One conversation over a WebSocket, with retries. Blocking."""

import contextlib
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import websocket

from loadtest.retry import SHED, RetryBudget, wait_before_retry
from sessiond.cli.chat_turn import ChatTurn, ProtocolFaultError, TurnStats
from sessiond.cli.server_api import ServerAddress

_SMALL_BUFFER = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """The result of a turn. Seconds count from the first try. `code`: why it was given up, else "".

    `refusals` counts the tries that the server shed, `tries` all of them. `continued`: it was not
    the first turn.
    """

    total_s: float
    tries: int
    refusals: int
    code: str = ""
    continued: bool = False
    ttft_s: float | None = None
    stats: TurnStats | None = None

    @property
    def lost(self) -> bool:
        """Whether the conversation can't be continued."""
        return bool(self.code)


class Conversation:
    """Sends turns; each continues the last finished one, over a new socket if necessary.

    `read_delay_s` makes a slow reader: it waits before each frame, with a small receive buffer.
    """

    def __init__(  # noqa: PLR0913 -- options, passed by keyword
        self,
        url: str,
        *,
        api_key: str | None = None,
        retry_budget: RetryBudget = RetryBudget(),  # noqa: B008 -- frozen
        timeout_s: float = 60.0,
        read_delay_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._address = ServerAddress.parse(url, api_key)
        self._retry_budget = retry_budget
        self._timeout_s = timeout_s
        self._read_delay_s = read_delay_s
        self._sleep = sleep
        self._clock = clock
        self._socket: Any = None
        self.tip: str | None = None
        self.session_id: str | None = None

    def say(self, text: str, **fields: Any) -> Met:
        """Send a turn and read its reply, with retries; failures are results, not exceptions."""
        started_s, tries, refusals = self._clock(), 0, 0
        continued = self.tip is not None
        while True:
            tries += 1
            sent_s = self._clock()
            code, retry_after_s, turn = self._try(text, fields)
            elapsed_s = self._clock() - started_s
            if not code and turn is not None and turn.end is not None:
                self.tip = turn.end.tip or self.tip
                self.session_id = turn.session_id or self.session_id
                stats = turn.end.stats
                first_s = None if stats is None or stats.ttft_s is None else stats.ttft_s
                waited_s = sent_s - started_s
                return Met(
                    total_s=elapsed_s,
                    tries=tries,
                    refusals=refusals,
                    continued=continued,
                    ttft_s=None if first_s is None else waited_s + first_s,
                    stats=stats,
                )
            refusals += code in SHED
            wait_s = wait_before_retry(code, tries, elapsed_s, retry_after_s, self._retry_budget)
            if wait_s is None:
                return Met(total_s=elapsed_s, tries=tries, refusals=refusals, code=code)
            self._sleep(wait_s)

    def drop(self) -> None:
        """Drop the connection without a close frame, as on a lost network."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown()
        self._socket = None

    def close(self) -> None:
        """Close the connection in order."""
        if self._socket is not None:
            with contextlib.suppress(OSError, websocket.WebSocketException):
                self._socket.close(timeout=1)
        self._socket = None

    def _try(self, text: str, fields: dict[str, Any]) -> tuple[str, float | None, ChatTurn | None]:
        """Try once; returns the error code ("" for none), Retry-After and the turn."""
        request = {"type": "response.create", "input": text} | fields
        if self.tip is not None:
            request["previous_response_id"] = self.tip
        try:
            self._connect()
            turn = ChatTurn(sent_at_s=self._clock())
            self._socket.send(json.dumps(request))
            return self._read(turn)
        except websocket.WebSocketBadStatusException as error:
            return _code_of_status(error.status_code), None, None
        except (OSError, websocket.WebSocketException, ProtocolFaultError):
            self.drop()
            return "cut", None, None

    def _connect(self) -> None:
        if self._socket is not None:
            return
        headers = [f"{name}: {value}" for name, value in self._address.headers.items()]
        small = (socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
        self._socket = websocket.create_connection(
            self._address.socket,
            header=headers,
            timeout=self._timeout_s,
            enable_multithread=False,
            http_no_proxy=["*"] if self._address.is_loopback else None,
            sockopt=[small] if self._read_delay_s else [],
        )

    def _read(self, turn: ChatTurn) -> tuple[str, float | None, ChatTurn]:
        while True:
            if self._read_delay_s:
                self._sleep(self._read_delay_s)
            frame = self._socket.recv()
            if not frame:
                raise websocket.WebSocketConnectionClosedException("closed in a turn")
            turn.feed(frame, at_s=self._clock())
            if (end := turn.end) is not None:
                break
        if end.outcome in ("failed", "refused"):
            return end.code or "unknown", _retry_after_s(frame), turn
        return "", None, turn


def _retry_after_s(frame: str | bytes) -> float | None:
    headers = json.loads(frame).get("error", {}) or {}
    value = (headers.get("headers") or {}).get("Retry-After")
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def _code_of_status(status: int) -> str:
    """The protocol's error code for the status of a refused handshake."""
    return {429: "rate_limit_exceeded", 503: "draining", 401: "invalid_api_key"}.get(status, "cut")
