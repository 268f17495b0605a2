"""Wires parts into an application: the only wiring."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import WebSocketRoute

from sessiond.errors import RequestError
from sessiond.gateway.chat_api import ChatApi
from sessiond.gateway.conversations import ConversationsApi
from sessiond.gateway.health import HealthApi
from sessiond.gateway.jobs import database_error, internal_error
from sessiond.gateway.parts import Gateway
from sessiond.gateway.refusal import error_response, plain_error_response
from sessiond.gateway.rest import ResponsesApi
from sessiond.gateway.security import HostOriginCheck
from sessiond.gateway.sessions_api import SessionsApi
from sessiond.gateway.socket import SocketEndpoint
from sessiond.store.errors import StoreError


def build_app(gateway: Gateway, *, allowed_hosts: Iterable[str] = ()) -> Starlette:
    """Build the ASGI application. Its lifespan starts and stops the service, not the engine."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await gateway.service.start()
        try:
            yield
        finally:
            await gateway.service.stop()

    return Starlette(
        routes=[
            WebSocketRoute("/v1/responses", SocketEndpoint(gateway).serve),
            *ResponsesApi(gateway).routes(),
            *ChatApi(gateway).routes(),
            *ConversationsApi(gateway).routes(),
            *SessionsApi(gateway).routes(),
            *HealthApi(gateway).routes(),
        ],
        middleware=[Middleware(HostOriginCheck, allowed_hosts=tuple(allowed_hosts))],
        exception_handlers={
            RequestError: _refused,
            HTTPException: _not_routed,
            StoreError: _not_stored,
            ClientDisconnect: _gone,
            Exception: _fault,
        },
        lifespan=lifespan,
    )


async def drain(gateway: Gateway) -> None:
    """Refuse new work, let running turns end, then close the sockets with 1012."""
    gateway.connections.begin_drain()
    await gateway.service.drain()
    await gateway.connections.close_all()


async def _refused(_: Request, error: Exception) -> Response:
    return error_response(cast("RequestError", error))


async def _not_stored(_: Request, error: Exception) -> Response:
    return error_response(database_error(cast("StoreError", error)))


async def _not_routed(request: Request, error: Exception) -> Response:
    found = cast("HTTPException", error)
    message = f"{request.method} {request.url.path}: {found.detail}"
    return plain_error_response(found.status_code, message, dict(found.headers or {}))


async def _gone(_: Request, error: Exception) -> Response:  # noqa: ARG001 -- Starlette's signature
    return Response(status_code=499)  # nobody reads it


async def _fault(_: Request, error: Exception) -> Response:  # noqa: ARG001 -- logged by uvicorn
    return error_response(internal_error())
