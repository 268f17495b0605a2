"""An id for every request, one log line per refused request, and an access log. Pure ASGI.

The id is the client's `x-request-id` if it is valid, else a new one. It is in every answer, and
`request_id()` returns it to all code that runs for the request, so that each log line can carry it.
Lines have no text of a client: neither paths nor queries, values nor names of unknown fields. The
path is that of the route, with `{id}` for ids, which clients may choose.
"""

import logging
import re
import secrets
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.routing import Match, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sessiond.api.protocol.requests import BODY_KEYS
from sessiond.domain import Caller
from sessiond.errors import RequestError

REQUEST_ID = b"x-request-id"
LINES_AT_ONCE = 20
"""Lines of one error code that are logged at once; after them one a second."""

_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "SOCKET"})
_PARAMS = BODY_KEYS | {"messages", "Host", "Origin"}  # others may be names of a client's own

_refusals = logging.getLogger("sessiond.refused")
_accesses = logging.getLogger("sessiond.access")


class LineBudget:
    """Bounds log lines per kind: a number at once, then one a second."""

    def __init__(self, at_once: int, clock: Callable[[], float]) -> None:
        self._at_once = at_once
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # lines, and when they were counted
        self._omitted: dict[str, int] = {}

    def take(self, kind: str) -> int | None:
        """Take one line: the number of lines that were omitted before it; None: omit it."""
        now_s = self._clock()
        left, counted_s = self._left.get(kind, (float(self._at_once), now_s))
        left = min(self._at_once, left + now_s - counted_s)
        if left < 1:
            self._left[kind] = left, now_s
            self._omitted[kind] = self._omitted.get(kind, 0) + 1
            return None
        self._left[kind] = left - 1, now_s
        return self._omitted.pop(kind, 0)


@dataclass(slots=True)
class _Record:
    id: str
    scope: Scope
    budget: LineBudget
    caller: Caller | None = None
    status: int = 0
    bytes_sent: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def words(self, status: int) -> str:
        scope = self.scope
        method = scope["method"] if scope["type"] == "http" else "SOCKET"
        shown = method if method in _METHODS else "other"
        words = f"method={shown} route={_route(scope)} status={status}"
        if self.caller is not None:
            words += f" user={self.caller.user_id}"
            words += f" key={self.caller.key_id}" if self.caller.key_id else ""
        client = scope.get("client")
        return f"{words} client={client[0]}" if client else words


_current: ContextVar[_Record | None] = ContextVar("request", default=None)


class RequestIds(logging.Filter):
    """Gives each record `request`: ` request_id=…`, or nothing outside of requests. Drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Complete a record."""
        found = request_id()
        record.request = f" request_id={found}" if found else ""
        return True


def request_id() -> str | None:
    """The id of the request or socket that this task works for."""
    record = _current.get()
    return None if record is None else record.id


def new_request_id() -> str:
    """An id for a request that the application does not see."""
    return f"req_{secrets.token_hex(16)}"


def note_caller(caller: Caller) -> None:
    """Log the id of the user and of the key with the current request."""
    if (record := _current.get()) is not None:
        record.caller = caller


def note_refusal(error: RequestError) -> None:
    """Log that the current request, or a frame of the current socket, was refused."""
    param = (error.param or "").partition(".")[0].partition("[")[0]
    _refuse(error.status, error.code, f" param={param}" if param in _PARAMS else "")


def note_wrong_path(status: int) -> None:
    """Log that the current request has an unknown path or a wrong method."""
    _refuse(status, "not_routed", "")


def _refuse(status: int, code: str, more: str) -> None:
    record = _current.get()
    if record is None:
        return
    omitted = record.budget.take(code)
    if omitted is not None:
        more += f" omitted_lines={omitted}" if omitted else ""
        _refusals.info("request refused %s code=%s%s", record.words(status), code, more)


class RequestLog:
    """ASGI middleware, outermost of all. `access_log`: one line per answer and per ended socket."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        internal_error: ASGIApp,
        access_log: bool = False,
    ) -> None:
        self._app = app
        self._internal_error = internal_error
        self._access_log = access_log
        self._budget = LineBudget(LINES_AT_ONCE, time.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; answer an internal error, which the server then logs."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        record = _Record(self._given_id(scope) or new_request_id(), scope, self._budget)
        _current.set(record)  # kept to the task's end, so that the server's traceback has the id
        send = _with_id(record, send)
        try:
            await self._app(scope, receive, send)
        except Exception:
            if scope["type"] == "http" and not record.status:
                await self._internal_error(scope, receive, send)
            raise
        finally:
            if self._access_log:
                _log_access(record)

    def _given_id(self, scope: Scope) -> str | None:
        given = [value for name, value in scope["headers"] if name.lower() == REQUEST_ID]
        return given[0].decode() if len(given) == 1 and _ID.fullmatch(given[0]) else None


def _with_id(record: _Record, send: Send) -> Send:
    header = (REQUEST_ID, record.id.encode())

    async def send_with_id(message: Message) -> None:
        match message["type"]:
            case "http.response.start" | "websocket.http.response.start":
                record.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), header]}
            case "websocket.accept":
                record.status = 101
                message = {**message, "headers": [*message.get("headers", ()), header]}
            case "http.response.body":
                record.bytes_sent += len(message.get("body", b""))
            case _:
                pass
        await send(message)

    return send_with_id


def _log_access(record: _Record) -> None:
    took_ms = 1000 * (time.monotonic() - record.began_s)
    words = record.words(record.status)
    _accesses.info("request %s bytes=%d ms=%.0f", words, record.bytes_sent, took_ms)


def _route(scope: Scope) -> str:
    """The path of the route as it is written in the program; `unknown`: there is none."""
    found = "unknown"
    for route in scope["app"].routes:
        match = route.matches(scope)[0]
        if match is not Match.NONE and isinstance(route, Route | WebSocketRoute | Mount):
            found = route.path
            if match is Match.FULL:
                break
    return found
