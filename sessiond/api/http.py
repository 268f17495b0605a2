"""Bounded reading of bodies, queries and headers of HTTP requests."""

from collections.abc import Callable
from typing import Literal

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from sessiond.api.access import admission_of
from sessiond.api.protocol import fields
from sessiond.api.protocol.requests import decode_idempotency_key
from sessiond.domain import Caller
from sessiond.errors import RequestError

MAX_PAGE = 100
DEFAULT_PAGE = 20
SESSION_HEADER = b"x-session-id"
_MAX_SESSION_HEADER = 256


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read a body of at most `max_bytes`.

    Raises:
        RequestError: `request_too_large`, as early as possible; `invalid_api_key`, the key was
            revoked while the body was received.
        ClientDisconnect: the client disconnected.
    """
    too_large = RequestError("request_too_large", f"the body must be at most {max_bytes} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise too_large
        if not message.get("more_body", False):
            admission_of(request.scope)
            return bytes(body)


async def watch_disconnect(receive: Receive, on_disconnect: Callable[[], None]) -> None:
    """Call `on_disconnect` when the client disconnects. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
    on_disconnect()


def caller_of(request: Request) -> Caller:
    """Return the caller of a request.

    Raises:
        RequestError: `invalid_api_key`.
    """
    return admission_of(request.scope).caller


def page_limit(request: Request) -> int:
    """Read `?limit=`.

    Raises:
        RequestError: `invalid_value`.
    """
    limit = query_integer(request, "limit", 1, MAX_PAGE)
    return DEFAULT_PAGE if limit is None else limit


def query_integer(
    request: Request, name: str, lowest: int = 0, highest: int = fields.MAX_INT
) -> int | None:
    """Read an integer of the query.

    Raises:
        RequestError: `invalid_value`.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    is_short_number = text.isascii() and text.isdigit() and len(text) <= len(str(highest))
    return fields.integer(name, int(text) if is_short_number else text, lowest, highest)


def query_flag(request: Request, name: str) -> bool:
    """Read a flag of the query.

    Raises:
        RequestError: `invalid_value`.
    """
    word = request.query_params.get(name, "false").lower()
    return fields.one_of(name, word, ("false", "true", "0", "1")) in {"true", "1"}


def page_order(request: Request) -> Literal["asc", "desc"]:
    """Read `?order=`.

    Raises:
        RequestError: `invalid_value`.
    """
    choices: tuple[Literal["asc", "desc"], ...] = ("asc", "desc")
    return fields.one_of("order", request.query_params.get("order", "desc"), choices)


def idempotency_key(request: Request) -> str | None:
    """Read the `Idempotency-Key` header.

    Raises:
        RequestError: `invalid_value`.
    """
    return decode_idempotency_key(request.headers.get("idempotency-key"), "Idempotency-Key")


def session_header(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the client's `X-Session-Id` (any case; proxies write `_` for `-`), to be echoed."""
    for name, value in scope["headers"]:
        if name.lower().replace(b"_", b"-") == SESSION_HEADER:
            return [(SESSION_HEADER, value)] if len(value) <= _MAX_SESSION_HEADER else []
    return []
