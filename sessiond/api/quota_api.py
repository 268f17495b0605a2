"""`/admin/users/{id}/quota`: a user's limits, for admins to read and change."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sessiond.api.http import caller_of, read_body
from sessiond.api.parts import Gateway
from sessiond.api.protocol.json_text import parse_object
from sessiond.api.protocol.quotas import decode_limits, quota_object
from sessiond.api.refusal import json_response
from sessiond.domain import Caller
from sessiond.errors import RequestError


class QuotaApi:
    """Read and change the quota of any user."""

    def __init__(self, gateway: Gateway) -> None:
        self._limits = gateway.limits
        self._quotas = gateway.sessions.quotas
        self._accounts = gateway.accounts

    def routes(self) -> list[BaseRoute]:
        """List the routes."""
        one = "/admin/users/{user_id}/quota"
        return [
            Route(one, self.read, methods=["GET"]),
            Route(one, self.change, methods=["PUT"]),
        ]

    async def read(self, request: Request) -> Response:
        """`GET /admin/users/{id}/quota`: the limits and the usage."""
        user_id = await self._user(self._admin(request), request)
        account = await self._quotas.account(user_id)
        return json_response(quota_object(user_id, account))

    async def change(self, request: Request) -> Response:
        """`PUT /admin/users/{id}/quota`: changes the given fields; null is no limit."""
        caller = self._admin(request)
        body = await read_body(request, self._limits.max_body_bytes)
        limits = decode_limits(parse_object(body))
        user_id = await self._user(caller, request)
        account = await self._quotas.set(caller, user_id, limits)
        if self._accounts is not None:
            await self._accounts.write_down(caller.user_id, "user.quota", user_id, **limits)
        return json_response(quota_object(user_id, account))

    def _admin(self, request: Request) -> Caller:
        caller = caller_of(request)
        if not caller.is_admin:
            raise RequestError("permission_denied", "quotas require an admin")
        return caller

    async def _user(self, caller: Caller, request: Request) -> str:
        """Check the user id: a mistyped one must not create a user; one's own may be unstored."""
        user_id: str = request.path_params["user_id"]
        if self._accounts is not None and user_id != caller.user_id:
            await self._accounts.user(user_id)
        return user_id
