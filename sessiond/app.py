"""Builds the ASGI application: the only wiring of its routes and middleware."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute

from sessiond.api.access import Admittance
from sessiond.api.admin import AdminApi
from sessiond.api.chat_api import ChatApi
from sessiond.api.console_page import ConsolePage
from sessiond.api.conversations_api import ConversationsApi
from sessiond.api.health import HealthApi
from sessiond.api.jobs import database_error, internal_error
from sessiond.api.openapi_api import OpenApi
from sessiond.api.parts import Gateway
from sessiond.api.pool_api import PoolApi
from sessiond.api.quota_api import QuotaApi
from sessiond.api.refusal import error_response, plain_error_response
from sessiond.api.request_head import RequestHead
from sessiond.api.rest import ResponsesApi
from sessiond.api.security import HostOriginCheck, plain_origin
from sessiond.api.sessions_api import SessionsApi
from sessiond.api.socket import SocketEndpoint
from sessiond.api.trace_parent import TraceParent
from sessiond.errors import RequestError
from sessiond.store.errors import StoreError

EXPOSED_HEADERS = ("Retry-After", "X-Session-Id")


def build_app(
    gateway: Gateway,
    *,
    allowed_hosts: Iterable[str] = (),
    allowed_origins: Iterable[str] = (),
    traced: bool = False,
) -> Starlette:
    """Build the ASGI application. Its lifespan starts and stops the sessions, not the engine.

    `traced`: traces are exported, so trace headers of callers are read.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await gateway.sessions.start()
        gateway.key_watch.start()
        gateway.audit_watch.start()
        try:
            yield
        finally:
            await gateway.audit_watch.stop()
            await gateway.key_watch.stop()
            await gateway.sessions.stop()

    return Starlette(
        routes=[
            WebSocketRoute("/v1/responses", SocketEndpoint(gateway).serve),
            *ResponsesApi(gateway).routes(),
            *ChatApi(gateway).routes(),
            *ConversationsApi(gateway).routes(),
            *SessionsApi(gateway).routes(),
            *QuotaApi(gateway).routes(),
            *HealthApi(gateway).routes(),
            *PoolApi(gateway).routes(),
            *OpenApi(gateway).routes(),
            *ConsolePage().routes(),
            *_admin_routes(gateway),
        ],
        middleware=[
            *([Middleware(TraceParent)] if traced else []),
            *_middleware(gateway, allowed_hosts, allowed_origins),
        ],
        exception_handlers={
            RequestError: _refused,
            HTTPException: _not_routed,
            StoreError: _not_stored,
            ClientDisconnect: _gone,
            Exception: _fault,
        },
        lifespan=lifespan,
    )


def _admin_routes(gateway: Gateway) -> list[BaseRoute]:
    if gateway.accounts is None:
        return []
    return AdminApi(gateway, gateway.accounts, drain=lambda: drain(gateway)).routes()


def _middleware(
    gateway: Gateway, allowed_hosts: Iterable[str], allowed_origins: Iterable[str]
) -> list[Middleware]:
    """From the outside in: request size, host and origin, authentication."""
    origins = [plain_origin(origin) for origin in allowed_origins]
    stack = [
        Middleware(RequestHead),
        Middleware(
            HostOriginCheck, allowed_hosts=tuple(allowed_hosts), allowed_origins=tuple(origins)
        ),
    ]
    if origins:  # lets scripts of these pages read responses
        stack.append(
            Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["GET", "POST", "PUT", "DELETE"],
                allow_headers=["*"],
                expose_headers=EXPOSED_HEADERS,
            )
        )
    stack.append(Middleware(Admittance, auth=gateway.auth, key_watch=gateway.key_watch))
    return stack


async def drain(gateway: Gateway) -> None:
    """Refuse new work, let running turns end, then close the sockets with 1012."""
    gateway.connections.begin_drain()
    await gateway.sessions.drain()
    await gateway.connections.close_all()


async def _refused(_: Request, error: Exception) -> Response:
    return error_response(cast("RequestError", error))


async def _not_stored(_: Request, error: Exception) -> Response:
    return error_response(database_error(cast("StoreError", error)))


async def _not_routed(request: Request, error: Exception) -> Response:
    found = cast("HTTPException", error)
    message = f"{request.method} {request.url.path}: {found.detail}"
    headers = dict(found.headers or {})
    if found.status_code == 405:
        headers["Allow"] = ", ".join(_methods(request))
    return plain_error_response(found.status_code, message, headers)


def _methods(request: Request) -> list[str]:
    """Methods of the path (RFC 9110, section 10.2.1), each of which has a route of its own."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    return sorted(
        method
        for route in routes
        if route.matches(request.scope)[0] is Match.PARTIAL
        for method in route.methods or ()
    )


async def _gone(_: Request, error: Exception) -> Response:  # noqa: ARG001 -- Starlette's signature
    return Response(status_code=499)  # the client has disconnected


async def _fault(_: Request, error: Exception) -> Response:  # noqa: ARG001 -- logged by uvicorn
    return error_response(internal_error())
