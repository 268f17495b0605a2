"""`/v1/sessions`: what conversations hold, for their owner to inspect and steer."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sessiond.facts import SessionView
from sessiond.gateway.http import caller_of, page_limit
from sessiond.gateway.parts import Gateway
from sessiond.gateway.protocol import fields
from sessiond.gateway.protocol.resources import Json, list_object
from sessiond.gateway.refusal import json_response

INCLUDABLE = ("page_table",)


class SessionsApi:
    """List, inspect, reset and close sessions."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._service = gateway.service

    def routes(self) -> list[BaseRoute]:
        """List the routes."""
        one = "/v1/sessions/{session_id}"
        return [
            Route("/v1/sessions", self.list_all, methods=["GET"]),
            Route(one, self.read, methods=["GET"]),
            Route(one, self.close, methods=["DELETE"]),
            Route(f"{one}/reset", self.reset, methods=["POST"]),
        ]

    async def list_all(self, request: Request) -> Response:
        """`GET /v1/sessions`, latest activity first."""
        page = await self._service.list_sessions(
            caller_of(request, self._gateway.auth),
            page_limit(request),
            request.query_params.get("after"),
        )
        sessions = [session_object(view) for view in page.sessions]
        return json_response(list_object(sessions, has_more=page.has_more))

    async def read(self, request: Request) -> Response:
        """`GET /v1/sessions/{id}`, with its page table on `?include=page_table`."""
        params = request.query_params
        wanted = [*params.getlist("include"), *params.getlist("include[]")]
        names = [name for one in wanted for name in one.split(",")]
        for name in names:
            fields.one_of("include", name, INCLUDABLE)
        view = await self._service.get_session(
            caller_of(request, self._gateway.auth),
            request.path_params["session_id"],
            include_page_table="page_table" in names,
        )
        return json_response(session_object(view))

    async def reset(self, request: Request) -> Response:
        """`POST /v1/sessions/{id}/reset`: empty the context but for the instructions."""
        caller = caller_of(request, self._gateway.auth)
        view = await self._service.reset_session(caller, request.path_params["session_id"])
        return json_response(session_object(view))

    async def close(self, request: Request) -> Response:
        """`DELETE /v1/sessions/{id}`."""
        session_id = request.path_params["session_id"]
        await self._service.close_session(caller_of(request, self._gateway.auth), session_id)
        return json_response({"id": session_id, "object": "session.deleted", "deleted": True})


def session_object(view: SessionView) -> Json:
    """Build a session: the view's own fields, the page table only if it was asked for."""
    session: Json = msgspec.to_builtins(view)
    if view.page_table is None:
        del session["page_table"]
    return session
