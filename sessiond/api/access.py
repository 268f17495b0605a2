"""Authenticates requests before any other code sees them. Pure ASGI.

Every path requires a key except those on a short list; paths under `/admin` require an admin. A
path that is added later is therefore closed unless it is listed here.
"""

import asyncio
from dataclasses import dataclass
from typing import cast

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from sessiond.api.auth import Authenticator, bearer_key, subprotocol_key, unknown_key
from sessiond.api.key_watch import KeyWatch
from sessiond.api.refusal import refuse_connection
from sessiond.domain import Caller
from sessiond.errors import RequestError

# for load balancers, scrapers and readers of the documentation, who have no key
OPEN_PATHS = frozenset(
    {"/", "/health", "/health/live", "/health/ready", "/metrics", "/openapi.json", "/console"}
)
_OPEN_FOLDER = "/console/"  # the page's static files; the data that it shows requires a key
ADMIN_PATH = "/admin/"
_SCOPE_KEY = "sessiond.admission"


@dataclass(frozen=True, slots=True)
class Admission:
    """The authenticated caller; `revoked` is set when the caller's key is revoked."""

    caller: Caller
    revoked: asyncio.Event


class Admittance:
    """ASGI middleware: 401 without a valid key, 403 if the path requires an admin."""

    def __init__(self, app: ASGIApp, *, auth: Authenticator, key_watch: KeyWatch) -> None:
        self._app = app
        self._auth = auth
        self._key_watch = key_watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its caller in the scope, or refuse it."""
        if scope["type"] not in {"http", "websocket"} or _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._auth.caller(_key(scope))
            _check_role(scope["path"], caller)
        except RequestError as error:
            await refuse_connection(error, scope, receive, send)
            return
        with self._key_watch.using(caller.key_id) as revoked:
            scope[_SCOPE_KEY] = Admission(caller, revoked)
            await self._app(scope, receive, send)


def admission_of(scope: Scope) -> Admission:
    """Return the authenticated caller of this request.

    Raises:
        RequestError: `invalid_api_key`, the key was revoked while the body was received.
    """
    admission = cast("Admission", scope[_SCOPE_KEY])
    if admission.revoked.is_set():
        raise unknown_key()
    return admission


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(_OPEN_FOLDER)


def _check_role(path: str, caller: Caller) -> None:
    if path.startswith(ADMIN_PATH) and not caller.is_admin:
        raise RequestError("permission_denied", f"{path[:100]} requires an admin")


def _key(scope: Scope) -> str | None:
    key = bearer_key(Headers(scope=scope).get("authorization"))
    if key is None and scope["type"] == "websocket":
        return subprotocol_key(scope["subprotocols"])
    return key
