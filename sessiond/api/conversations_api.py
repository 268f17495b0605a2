"""`/v1/conversations`: sessions as the conversations of the Responses API, and their items."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sessiond.api.http import caller_of, idempotency_key, page_limit, page_order, read_body
from sessiond.api.parts import Gateway
from sessiond.api.protocol import fields
from sessiond.api.protocol.items import MAX_ADDED, decode_input
from sessiond.api.protocol.json_text import parse_object
from sessiond.api.protocol.requests import decode_metadata
from sessiond.api.protocol.resources import Json, conversation_object, list_object
from sessiond.api.refusal import json_response
from sessiond.api.rest import item_list, stored_item
from sessiond.domain import ConversationResource, InputItem
from sessiond.sessions.names import MAX_NAME, OWN_ID_PREFIX, is_name


class ConversationsApi:
    """Create, read, change and delete conversations; append and read their items."""

    def __init__(self, gateway: Gateway) -> None:
        self._limits = gateway.limits
        sessions = gateway.sessions
        self._conversations, self._openings = sessions.conversations, sessions.openings

    def routes(self) -> list[BaseRoute]:
        """List the routes."""
        one = "/v1/conversations/{session_id}"
        item = f"{one}/items/{{item_id}}"
        return [
            Route("/v1/conversations", self.create, methods=["POST"]),
            Route(one, self.read, methods=["GET"]),
            Route(one, self.update, methods=["POST"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(f"{one}/items", self.list_items, methods=["GET"]),
            Route(f"{one}/items", self.add_items, methods=["POST"]),
            Route(item, self.read_item, methods=["GET"]),
            Route(item, self.delete_item, methods=["DELETE"]),
        ]

    async def create(self, request: Request) -> Response:
        """`POST /v1/conversations`."""
        pairs = await self._body(request, frozenset({"id", "items", "metadata"}))
        view = await self._openings.create(
            caller_of(request),
            _items(pairs.get("items")),
            decode_metadata(pairs.get("metadata")),
            name=_name(pairs.get("id")),
            key=idempotency_key(request),
        )
        return json_response(_conversation(view))

    async def read(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}`."""
        caller = caller_of(request)
        view = await self._conversations.get(caller, request.path_params["session_id"])
        return json_response(_conversation(view))

    async def update(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}`: replace its metadata."""
        pairs = await self._body(request, frozenset({"metadata"}))
        view = await self._conversations.update(
            caller_of(request),
            request.path_params["session_id"],
            decode_metadata(pairs.get("metadata")),
        )
        return json_response(_conversation(view))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/conversations/{id}`."""
        session_id = request.path_params["session_id"]
        await self._conversations.close(caller_of(request), session_id)
        deleted = {"id": session_id, "object": "conversation.deleted", "deleted": True}
        return json_response(deleted)

    async def list_items(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items`."""
        page = await self._conversations.list_items(
            caller_of(request),
            request.path_params["session_id"],
            limit=page_limit(request),
            after=request.query_params.get("after"),
            order=page_order(request),
        )
        return json_response(item_list(page))

    async def add_items(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}/items`."""
        pairs = await self._body(request, frozenset({"items"}))
        items = await self._conversations.add_items(
            caller_of(request),
            request.path_params["session_id"],
            _items(pairs.get("items")),
        )
        return json_response(list_object([stored_item(item) for item in items], has_more=False))

    async def read_item(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items/{item_id}`."""
        item = await self._conversations.get_item(
            caller_of(request),
            request.path_params["session_id"],
            request.path_params["item_id"],
        )
        return json_response(stored_item(item))

    async def delete_item(self, request: Request) -> Response:
        """`DELETE /v1/conversations/{id}/items/{item_id}`."""
        caller = caller_of(request)
        session_id = request.path_params["session_id"]
        await self._conversations.delete_item(caller, session_id, request.path_params["item_id"])
        view = await self._conversations.get(caller, session_id)
        return json_response(_conversation(view))

    async def _body(self, request: Request, known: frozenset[str]) -> dict[str, object]:
        body = await read_body(request, self._limits.max_body_bytes)
        pairs = parse_object(body) if body.strip() else {}
        fields.only_known(pairs, known)
        return pairs


def _items(value: object) -> tuple[InputItem, ...]:
    if value is None:
        return ()
    items = decode_input(fields.sequence("items", value), "items")
    if len(items) > MAX_ADDED:
        fields.refuse("items", f"{len(items)} items", f"an array of up to {MAX_ADDED} items")
    return items


def _name(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not is_name(value):
        allowed = f"1 to {MAX_NAME} of A-Z a-z 0-9 _ . - that don't begin with {OWN_ID_PREFIX}"
        fields.refuse("id", value, allowed)
    return value


def _conversation(view: ConversationResource) -> Json:
    return conversation_object(view.id, view.created_at, view.metadata)
