"""Bounds the head of a request: URL and headers together. Pure ASGI.

uvicorn checks its own bound only while a head is incomplete: a head that arrives in a single piece
passes it.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from sessiond.api.limits import MAX_HEAD_BYTES
from sessiond.api.refusal import refuse_connection
from sessiond.errors import RequestError


class HeadBounds:
    """ASGI middleware: 413 if the head exceeds `MAX_HEAD_BYTES`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] in {"http", "websocket"} and head_bytes(scope) > MAX_HEAD_BYTES:
            message = f"URL and headers must be at most {MAX_HEAD_BYTES} bytes together"
            await refuse_connection(
                RequestError("request_too_large", message), scope, receive, send
            )
            return
        await self._app(scope, receive, send)


def head_bytes(scope: Scope) -> int:
    """Approximate size of the head on the wire, in bytes."""
    headers = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return headers + len(scope["raw_path"] or b"") + len(scope["query_string"])
