"""`/v1/sessions`: inspection and control of sessions by their owners."""

from typing import get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sessiond.api.http import caller_of, page_limit, read_body
from sessiond.api.parts import Gateway
from sessiond.api.protocol import fields
from sessiond.api.protocol.json_text import parse_object
from sessiond.api.protocol.policies import decode_policy, policy_object
from sessiond.api.protocol.requests import MAX_ID
from sessiond.api.protocol.resources import Json, list_object
from sessiond.api.refusal import json_response
from sessiond.api.session_access import Reached, SessionReach
from sessiond.domain import Caller, PolicyChoice, SessionFilter, SessionState, SessionView
from sessiond.errors import RequestError

INCLUDABLE = ("page_table",)
SESSION_STATES: tuple[SessionState, ...] = get_args(SessionState)


class SessionsApi:
    """List, inspect, fork, reset, park and close sessions; admins also other users'."""

    def __init__(self, gateway: Gateway) -> None:
        self._limits = gateway.limits
        self._accounts = gateway.accounts
        sessions = gateway.sessions
        self._inspector, self._openings = sessions.inspector, sessions.openings
        self._conversations, self._settings = sessions.conversations, sessions.settings
        self._policies = sessions.policies
        self._reach = SessionReach(gateway.accounts, clock=gateway.clock)

    def routes(self) -> list[BaseRoute]:
        """List the routes."""
        one = "/v1/sessions/{session_id}"
        return [
            Route("/v1/sessions", self.list_all, methods=["GET"]),
            Route(one, self.read, methods=["GET"]),
            Route(one, self.close, methods=["DELETE"]),
            Route(f"{one}/fork", self.fork, methods=["POST"]),
            Route(f"{one}/reset", self.reset, methods=["POST"]),
            Route(f"{one}/park", self.park, methods=["POST"]),
            Route(f"{one}/policy", self.set_policy, methods=["PUT"]),
            Route(f"{one}/policy", self.clear_policy, methods=["DELETE"]),
            Route("/admin/users/{user_id}/policy", self.set_user_policy, methods=["PUT"]),
            Route("/admin/users/{user_id}/policy", self.clear_user_policy, methods=["DELETE"]),
        ]

    async def list_all(self, request: Request) -> Response:
        """`GET /v1/sessions`: latest activity first; filters are `?state=` and `?user=`."""
        page = await self._inspector.page(
            caller_of(request),
            page_limit(request),
            request.query_params.get("after"),
            _filter(request),
        )
        sessions = [session_object(view) for view in page.sessions]
        answer = list_object(sessions, has_more=page.has_more, last_id=page.last_id)
        return json_response(answer)

    async def read(self, request: Request) -> Response:
        """`GET /v1/sessions/{id}`: `?limit=` newest turns, or those before `?after=`.

        With its page table on `?include=page_table`.
        """
        params = request.query_params
        wanted = [*params.getlist("include"), *params.getlist("include[]")]
        names = [name for one in wanted for name in one.split(",")]
        for name in names:
            fields.one_of("include", name, INCLUDABLE)
        reached = await self._reached(request)
        view = await self._inspector.session(
            reached.owner,
            reached.session_id,
            include_page_table="page_table" in names,
            limit=page_limit(request),
            after=params.get("after"),
        )
        await self._reach.write_down_look(reached)
        return json_response(session_object(view))

    async def fork(self, request: Request) -> Response:
        """`POST /v1/sessions/{id}/fork`: a new session, from `{"response_id"}` or the last one."""
        caller = caller_of(request)
        view = await self._openings.fork(
            caller, request.path_params["session_id"], await self._read_response_id(request)
        )
        return json_response(session_object(view))

    async def reset(self, request: Request) -> Response:
        """`POST /v1/sessions/{id}/reset`: to `{"response_id"}`, or to the instructions alone."""
        response_id = await self._read_response_id(request)
        reached = await self._reached(request)
        view = await self._conversations.reset(reached.owner, reached.session_id, response_id)
        await self._reach.write_down(reached, "user.session.reset", response=response_id)
        return json_response(session_object(view))

    async def park(self, request: Request) -> Response:
        """`POST /v1/sessions/{id}/park`: move the session's KV from the device to lower tiers."""
        reached = await self._reached(request)
        view = await self._settings.park(reached.owner, reached.session_id)
        await self._reach.write_down(reached, "user.session.park")
        return json_response(session_object(view))

    async def set_policy(self, request: Request) -> Response:
        """`PUT /v1/sessions/{id}/policy`: `{"type": …}`, effective from the next turn."""
        return await self._replace_policy(request, await self._read_policy(request))

    async def clear_policy(self, request: Request) -> Response:
        """`DELETE /v1/sessions/{id}/policy`: revert to the policy of the user or the server."""
        return await self._replace_policy(request, None)

    async def _replace_policy(self, request: Request, policy: PolicyChoice | None) -> Response:
        reached = await self._reached(request)
        view = await self._settings.set_policy(reached.owner, reached.session_id, policy)
        name = policy.type if policy else None
        await self._reach.write_down(reached, "user.session.policy", policy=name)
        return json_response(session_object(view))

    async def set_user_policy(self, request: Request) -> Response:
        """`PUT /admin/users/{id}/policy`: for sessions without a policy of their own."""
        caller, user_id = self._admin(request), request.path_params["user_id"]
        policy = await self._read_policy(request)
        await self._check_user(caller, user_id)
        await self._policies.set_of_user(caller, user_id, policy)
        await self._write_down(caller, user_id, policy.type)
        return json_response({"user": user_id, "policy": policy_object(policy)})

    async def clear_user_policy(self, request: Request) -> Response:
        """`DELETE /admin/users/{id}/policy`: revert to the server's policy."""
        caller, user_id = self._admin(request), request.path_params["user_id"]
        await self._check_user(caller, user_id)
        await self._policies.set_of_user(caller, user_id, None)
        await self._write_down(caller, user_id, None)
        return json_response({"user": user_id, "policy": None})

    async def _check_user(self, caller: Caller, user_id: str) -> None:
        """Check the user id: a mistyped one must not create a user; one's own may be unstored."""
        if self._accounts is not None and user_id != caller.user_id:
            await self._accounts.user(user_id)

    async def _write_down(self, caller: Caller, user_id: str, policy: str | None) -> None:
        if self._accounts is not None:
            await self._accounts.write_down(caller.user_id, "user.policy", user_id, policy=policy)

    def _admin(self, request: Request) -> Caller:
        caller = caller_of(request)
        if not caller.is_admin:
            raise RequestError("permission_denied", "policies of users require an admin")
        return caller

    async def _read_response_id(self, request: Request) -> str | None:
        body = await read_body(request, self._limits.max_body_bytes)
        pairs = parse_object(body) if body.strip() else {}
        fields.only_known(pairs, frozenset({"response_id"}))
        return fields.optional_text("response_id", pairs.get("response_id"), longest=MAX_ID)

    async def _read_policy(self, request: Request) -> PolicyChoice:
        body = await read_body(request, self._limits.max_body_bytes)
        return decode_policy(parse_object(body))

    async def close(self, request: Request) -> Response:
        """`DELETE /v1/sessions/{id}`."""
        reached = await self._reached(request)
        await self._conversations.close(reached.owner, reached.session_id)
        await self._reach.write_down(reached, "user.session.close")
        session_id = request.path_params["session_id"]
        return json_response({"id": session_id, "object": "session.deleted", "deleted": True})

    async def _reached(self, request: Request) -> Reached:
        return await self._reach.find(caller_of(request), request.path_params["session_id"])


def _filter(request: Request) -> SessionFilter:
    params = request.query_params
    state = params.get("state")
    return SessionFilter(
        state=None if state is None else fields.one_of("state", state, SESSION_STATES),
        user_id=params.get("user"),
    )


def session_object(view: SessionView) -> Json:
    """Build a session object; the page table is included only on request."""
    session: Json = msgspec.to_builtins(view)
    if view.page_table is None:
        del session["page_table"]
    return session
