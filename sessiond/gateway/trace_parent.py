"""Takes the caller's trace as the parent of what a request or a socket begins. Pure ASGI."""

from starlette.types import ASGIApp, Receive, Scope, Send

from sessiond.tracing.parents import TRACE_HEADERS, parent_headers

_NAMES = {name.encode(): name for name in TRACE_HEADERS}


class TraceParent:
    """Installed only where traces are sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note the W3C headers for every task that comes of this."""
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
