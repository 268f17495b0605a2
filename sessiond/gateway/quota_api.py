"""`/admin/users/{id}/quota`: what a user may take, for admins to read and change."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sessiond.errors import RequestError
from sessiond.facts import Caller
from sessiond.gateway.http import caller_of, read_body
from sessiond.gateway.parts import Gateway
from sessiond.gateway.protocol.json_text import parse_object
from sessiond.gateway.protocol.quotas import decode_limits, quota_object
from sessiond.gateway.refusal import json_response


class QuotaApi:
    """Read and change the quota of any user, known or not: limits may be set before its key."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._quotas = gateway.service.quotas

    def routes(self) -> list[BaseRoute]:
        """List the routes."""
        one = "/admin/users/{user_id}/quota"
        return [
            Route(one, self.read, methods=["GET"]),
            Route(one, self.change, methods=["PUT"]),
        ]

    async def read(self, request: Request) -> Response:
        """`GET /admin/users/{id}/quota`: the limits, and what has been taken."""
        self._admin(request)
        user_id = request.path_params["user_id"]
        account = await self._quotas.account(user_id)
        return json_response(quota_object(user_id, account))

    async def change(self, request: Request) -> Response:
        """`PUT /admin/users/{id}/quota`: the fields that are given, null for no limit."""
        caller, user_id = self._admin(request), request.path_params["user_id"]
        body = await read_body(request, self._gateway.limits.max_body_bytes)
        limits = decode_limits(parse_object(body))
        account = await self._quotas.set(caller, user_id, limits)
        return json_response(quota_object(user_id, account))

    def _admin(self, request: Request) -> Caller:
        caller = caller_of(request, self._gateway.auth)
        if not caller.is_admin:
            raise RequestError("permission_denied", "quotas are for admins")
        return caller
