"""Makes the caller's trace the parent of spans of a request or a socket. Pure ASGI."""

from starlette.types import ASGIApp, Receive, Scope, Send

from sessiond.observability.trace_parents import TRACE_HEADERS, parent_headers

_NAMES = {name.encode(): name for name in TRACE_HEADERS}


class TraceParent:
    """ASGI middleware, installed only if traces are exported."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set the trace context from the W3C headers for all tasks of the request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {
            _NAMES[name]: value.decode("latin-1")
            for name, value in scope["headers"]
            if name in _NAMES
        }
        token = parent_headers.set(headers or None)
        try:
            await self._app(scope, receive, send)
        finally:
            parent_headers.reset(token)
