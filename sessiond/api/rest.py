"""`/v1/responses` over HTTP: turns for clients without a socket."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from sessiond.api.http import (
    caller_of,
    idempotency_key,
    page_limit,
    page_order,
    query_flag,
    query_integer,
    read_body,
)
from sessiond.api.parts import Gateway
from sessiond.api.protocol import fields
from sessiond.api.protocol.events import ResponseEncoder
from sessiond.api.protocol.json_text import parse_object
from sessiond.api.protocol.requests import decode_create_body
from sessiond.api.protocol.resources import (
    Json,
    ResponseState,
    list_object,
    message_item,
    response_object,
)
from sessiond.api.refusal import json_response
from sessiond.api.replay import ResponseEventEncoder
from sessiond.api.turn_stream import EventStream, whole_response
from sessiond.domain import Caller, ItemPage, ItemView, ResponseView, TurnRequest
from sessiond.sessions.turn import LogReplay, Turn


class ResponsesApi:
    """Create, read, cancel and delete responses."""

    def __init__(self, gateway: Gateway) -> None:
        self._limits = gateway.limits
        sessions = gateway.sessions
        self._turns, self._followers = sessions.turns, sessions.followers
        self._inspector, self._drain_rate = sessions.inspector, sessions.drain_rate

    def routes(self) -> list[BaseRoute]:
        """List the routes."""
        one = "/v1/responses/{response_id}"
        return [
            Route("/v1/responses", self.create, methods=["POST"]),
            Route(one, self.read, methods=["GET"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(f"{one}/cancel", self.cancel, methods=["POST"]),
            Route(f"{one}/input_items", self.input_items, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response | ASGIApp:
        """`POST /v1/responses`: JSON, or events with `stream`."""
        caller = caller_of(request)
        body = decode_create_body(await read_body(request, self._limits.max_body_bytes))
        turn = await self._begin(caller, body.request, idempotency_key(request))
        if body.stream:
            return EventStream(turn, self._limits)
        if body.request.background:
            return json_response(ResponseEncoder(turn.accepted, None).response)
        return await whole_response(turn, request, self._drain_rate)

    async def _begin(
        self, caller: Caller, request: TurnRequest, key: str | None
    ) -> Turn | LogReplay:
        """Start the turn, or replay it if the request repeats an earlier one."""
        if key is None:
            bound = await self._turns.bind(caller, request, attachment=None, lane=None)
            return await self._turns.run(bound)
        once = await self._turns.bind_once(caller, request, key, attachment=None, lane=None)
        if isinstance(once, str):
            return await self._followers.follow(caller, once)
        return await self._turns.run(once)

    async def read(self, request: Request) -> Response | ASGIApp:
        """`GET /v1/responses/{id}`; with `?stream=true&starting_after=N` as events after N."""
        caller, response_id = (
            caller_of(request),
            request.path_params["response_id"],
        )
        is_stream = query_flag(request, "stream")
        starting_after = query_integer(request, "starting_after")
        if is_stream:
            replay = await self._followers.follow(caller, response_id)
            event_encoder = ResponseEventEncoder.again(replay, None, starting_after)
            return EventStream(replay, self._limits, event_encoder)
        if starting_after is not None:
            fields.refuse("starting_after", starting_after, "absent without stream=true")
        view = await self._inspector.response(caller, response_id)
        return json_response(stored_response(view))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/responses/{id}`."""
        caller = caller_of(request)
        response_id = request.path_params["response_id"]
        await self._followers.forget(caller, response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`, with `{"keep": false}` or without a body."""
        caller = caller_of(request)
        response_id = request.path_params["response_id"]
        body = await read_body(request, self._limits.max_body_bytes)
        pairs = parse_object(body) if body.strip() else {}
        fields.only_known(pairs, frozenset({"keep"}))
        keep = fields.boolean("keep", pairs.get("keep"), default=True)
        await self._followers.cancel(caller, response_id, attachment=None, keep=keep)
        view = await self._inspector.response(caller, response_id)
        return json_response(stored_response(view))

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`."""
        page = await self._inspector.input_items(
            caller_of(request),
            request.path_params["response_id"],
            limit=page_limit(request),
            after=request.query_params.get("after"),
            order=page_order(request),
        )
        return json_response(item_list(page))


def stored_response(view: ResponseView) -> Json:
    """Build the response object of a stored turn."""
    accepted, finished = view.accepted, view.finished
    is_reply = finished is not None and (
        finished.text != "" or (finished.status == "completed" and accepted.request.generate)
    )
    return response_object(
        ResponseState(
            response_id=accepted.response_id,
            session_id=accepted.session_id,
            message_id=accepted.message_id,
            previous_response_id=accepted.previous_response_id,
            model=accepted.model,
            instructions=accepted.instructions,
            created_at=accepted.created_at,
            request=accepted.request,
            status=finished.status if finished else "in_progress",
            text=finished.text if finished and is_reply else None,
            usage=finished.usage if finished else None,
            reason=finished.reason if finished else None,
            error=finished.error if finished else None,
        )
    )


def stored_item(item: ItemView) -> Json:
    """Build a stored message."""
    return message_item(item.id, item.role, item.text, item.status)


def item_list(page: ItemPage) -> Json:
    """Build a page of stored messages."""
    return list_object([stored_item(item) for item in page.items], has_more=page.has_more)
