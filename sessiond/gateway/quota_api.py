"""`/admin/users/{id}/quota`: what a user may take, for admins to read and change."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sessiond.gateway.auth import LOCAL
from sessiond.gateway.http import caller_of, read_body
from sessiond.gateway.parts import Gateway
from sessiond.gateway.protocol.json_text import parse_object
from sessiond.gateway.protocol.quotas import decode_limits, quota_object
from sessiond.gateway.refusal import json_response


class QuotaApi:
    """Read and change users' quotas; changes are written down. `Admittance` lets only admins in."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._accounts = gateway.accounts
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
        user_id = await self._user_id(request)
        account = await self._quotas.account(user_id)
        return json_response(quota_object(user_id, account))

    async def change(self, request: Request) -> Response:
        """`PUT /admin/users/{id}/quota`: the fields that are given, null for no limit."""
        caller, user_id = caller_of(request), await self._user_id(request)
        body = await read_body(request, self._gateway.limits.max_body_bytes)
        limits = decode_limits(parse_object(body))
        account = await self._quotas.set(caller, user_id, limits)
        if self._accounts is not None:
            await self._accounts.write_down(caller.user_id, "quota.set", user_id, **limits)
        return json_response(quota_object(user_id, account))

    async def _user_id(self, request: Request) -> str:
        """The user of the path, which there must be where users are administered."""
        user_id: str = request.path_params["user_id"]
        if self._accounts is not None and user_id != LOCAL.user_id:
            await self._accounts.user(user_id)
        return user_id
