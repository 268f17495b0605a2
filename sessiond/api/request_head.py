"""Checks and completes the head of a request: URL and headers. Pure ASGI.

uvicorn checks its own bound only while a head is incomplete: a head that arrives in a single piece
passes it. It takes an absolute URL for a path, and keeps a connection whose framing is ambiguous.
"""

from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sessiond.api.limits import MAX_HEAD_BYTES
from sessiond.api.refusal import refuse_connection
from sessiond.errors import RequestError

_SCHEMES = (b"http://", b"https://")


class RequestHead:
    """ASGI middleware: 413 if the head exceeds `MAX_HEAD_BYTES`.

    An absolute URL is read as its host and path (RFC 9112, section 3.2.2): its host replaces the
    `Host` header. A request with both `Content-Length` and `Transfer-Encoding` is read by the
    latter, and its connection is closed behind the answer (section 6.1).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        if is_ambiguous(scope):
            send = _closing(send)
        if head_bytes(scope) > MAX_HEAD_BYTES:
            message = f"URL and headers must be at most {MAX_HEAD_BYTES} bytes together"
            await refuse_connection(
                RequestError("request_too_large", message), scope, receive, send
            )
            return
        await self._app(in_origin_form(scope), receive, send)


def head_bytes(scope: Scope) -> int:
    """Approximate size of the head on the wire, in bytes."""
    headers = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return headers + len(scope["raw_path"] or b"") + len(scope["query_string"])


def is_ambiguous(scope: Scope) -> bool:
    """Whether the body's length is said in two ways, as in request smuggling."""
    names = {name for name, _ in scope["headers"]}
    return {b"content-length", b"transfer-encoding"} <= names


def in_origin_form(scope: Scope) -> Scope:
    """The same request with a path as its target; unchanged if it has one."""
    target: bytes = scope["raw_path"] or b""
    if not target.lower().startswith(_SCHEMES):
        return scope
    authority, slash, path = target.partition(b"://")[2].partition(b"/")
    path = slash + path or b"/"
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    return {
        **scope,
        "raw_path": path,
        "path": unquote(path.decode("ascii", "replace")),
        "headers": [(b"host", authority), *headers],
    }


def _closing(send: Send) -> Send:
    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return send_and_close
