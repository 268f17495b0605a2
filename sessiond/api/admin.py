"""`/admin`: users, keys, the audit log, the drain. `Admittance` restricts it to admins."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sessiond.accounts import ROLES, Accounts
from sessiond.api.access import admission_of
from sessiond.api.http import page_limit, read_body
from sessiond.api.parts import Gateway
from sessiond.api.protocol import fields
from sessiond.api.protocol.accounts import audit_object, issued_object, key_object, user_object
from sessiond.api.protocol.json_text import parse_object
from sessiond.api.protocol.quotas import usage_object
from sessiond.api.protocol.resources import Json, list_object
from sessiond.api.refusal import json_response

logger = logging.getLogger(__name__)

_LONGEST_NAME = 256


class AdminApi:
    """Records every change in the audit log with the id of the admin who made it."""

    def __init__(
        self, gateway: Gateway, accounts: Accounts, *, drain: Callable[[], Awaitable[None]]
    ) -> None:
        self._limits = gateway.limits
        self._connections = gateway.connections
        self._quotas = gateway.sessions.quotas
        self._accounts = accounts
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None

    def routes(self) -> list[BaseRoute]:
        """List the routes."""
        one = "/admin/users/{user_id}"
        key = f"{one}/keys/{{key_id}}"
        return [
            Route("/admin/users", self.list_users, methods=["GET"]),
            Route("/admin/users", self.add_user, methods=["POST"]),
            Route(one, self.read_user, methods=["GET"]),
            Route(one, self.change_user, methods=["POST"]),
            Route(one, self.remove_user, methods=["DELETE"]),
            Route(f"{one}/keys", self.list_keys, methods=["GET"]),
            Route(f"{one}/keys", self.add_key, methods=["POST"]),
            Route(key, self.revoke_key, methods=["DELETE"]),
            Route(f"{key}/rotate", self.rotate_key, methods=["POST"]),
            Route("/admin/audit", self.audit, methods=["GET"]),
            Route("/admin/drain", self.drain_state, methods=["GET"]),
            Route("/admin/drain", self.begin_drain, methods=["POST"]),
        ]

    # --- users -----------------------------------------------------------------------------------

    async def list_users(self, request: Request) -> Response:
        """`GET /admin/users`: ordered by creation, removed users included."""
        users, has_more = await self._accounts.users(
            limit=page_limit(request), after=request.query_params.get("after")
        )
        return json_response(list_object([user_object(one) for one in users], has_more=has_more))

    async def add_user(self, request: Request) -> Response:
        """`POST /admin/users`: `{"name": …, "role": "user"|"admin"}`; creates no key."""
        pairs = await self._body(request, frozenset({"name", "role"}))
        name = fields.text("name", pairs.get("name"), longest=_LONGEST_NAME)
        role = fields.one_of("role", pairs.get("role", "user"), ROLES)
        user, _ = await self._accounts.add_user(_actor(request), name, role, with_key=False)
        return json_response(user_object(user), 201)

    async def read_user(self, request: Request) -> Response:
        """`GET /admin/users/{id}`, with the user's usage."""
        user = await self._accounts.user(_user_id(request))
        account = await self._quotas.account(user.id)
        return json_response(user_object(user) | {"usage": usage_object(account)})

    async def change_user(self, request: Request) -> Response:
        """`POST /admin/users/{id}`: `{"role": …}`."""
        pairs = await self._body(request, frozenset({"role"}))
        role = fields.one_of("role", pairs.get("role"), ROLES)
        user = await self._accounts.set_role(_actor(request), _user_id(request), role)
        return json_response(user_object(user))

    async def remove_user(self, request: Request) -> Response:
        """`DELETE /admin/users/{id}`: also revokes the user's keys."""
        user_id = _user_id(request)
        await self._accounts.remove_user(_actor(request), user_id)
        return json_response({"id": user_id, "object": "user.deleted", "deleted": True})

    # --- keys ------------------------------------------------------------------------------------

    async def list_keys(self, request: Request) -> Response:
        """`GET /admin/users/{id}/keys`: without secrets, which are not stored."""
        keys = await self._accounts.keys(_user_id(request))
        return json_response(list_object([key_object(key) for key in keys], has_more=False))

    async def add_key(self, request: Request) -> Response:
        """`POST /admin/users/{id}/keys`: only this response contains the whole key."""
        await self._body(request, frozenset())
        issued = await self._accounts.add_key(_actor(request), _user_id(request))
        return json_response(issued_object(issued), 201, _NOT_KEPT)

    async def revoke_key(self, request: Request) -> Response:
        """`DELETE /admin/users/{id}/keys/{key id}`: immediate; closes the key's sockets."""
        key_id = request.path_params["key_id"]
        await self._accounts.revoke_key(_actor(request), _user_id(request), key_id)
        return json_response({"id": key_id, "object": "key.deleted", "deleted": True})

    async def rotate_key(self, request: Request) -> Response:
        """`POST /admin/users/{id}/keys/{key id}/rotate`: revoke the key and issue a new one."""
        await self._body(request, frozenset())
        issued = await self._accounts.rotate_key(
            _actor(request), _user_id(request), request.path_params["key_id"]
        )
        return json_response(issued_object(issued), 201, _NOT_KEPT)

    # --- the server ------------------------------------------------------------------------------

    async def audit(self, request: Request) -> Response:
        """`GET /admin/audit`: admins' actions, newest first; `?after=` an id continues."""
        after = request.query_params.get("after")
        if after is not None and not (after.isascii() and after.isdigit() and len(after) < 10):
            fields.refuse("after", after, "the id of a row of the audit log")
        rows, has_more = await self._accounts.audits(
            limit=page_limit(request), before=None if after is None else int(after)
        )
        return json_response(list_object([audit_object(row) for row in rows], has_more=has_more))

    async def drain_state(self, request: Request) -> Response:  # noqa: ARG002 -- Starlette's signature
        """`GET /admin/drain`."""
        return json_response(self._drain_object())

    async def begin_drain(self, request: Request) -> Response:
        """`POST /admin/drain`: refuse new work, let turns end, close sockets with 1012.

        The process keeps running until it receives a signal. A second call has no effect.
        """
        await self._body(request, frozenset())
        await self._accounts.write_down(_actor(request), "drain", None)
        if self._draining is None:
            self._connections.begin_drain()
            self._draining = asyncio.create_task(self._run_drain())
        return json_response(self._drain_object(), 202)

    async def _run_drain(self) -> None:
        try:
            await self._drain()
        except Exception:
            logger.exception("the drain failed")

    def _drain_object(self) -> Json:
        connections = self._connections
        return {
            "object": "drain",
            "draining": connections.draining,
            "done": self._draining is not None and self._draining.done(),
            "sockets": connections.open_count,
        }

    async def _body(self, request: Request, known: frozenset[str]) -> dict[str, object]:
        body = await read_body(request, self._limits.max_body_bytes)
        pairs = parse_object(body) if body.strip() else {}
        fields.only_known(pairs, known)
        return pairs


_NOT_KEPT = {"Cache-Control": "no-store"}


def _actor(request: Request) -> str:
    return admission_of(request.scope).caller.user_id


def _user_id(request: Request) -> str:
    user_id: str = request.path_params["user_id"]
    return user_id
