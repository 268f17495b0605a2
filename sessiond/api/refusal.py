"""Errors as HTTP responses, including denial responses of sockets."""

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sessiond.api.protocol.resources import Json, request_error_object
from sessiond.errors import RequestError


def json_response(
    body: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Build a JSON response."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def error_response(error: RequestError) -> Response:
    """Build the response to a refused request: the inner error, with `Retry-After` if known.

    A 401 names the authentication scheme (RFC 6750, section 3).
    """
    headers = dict(error.headers)
    if error.code == "invalid_api_key":
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return json_response({"error": request_error_object(error)}, error.status, headers)


def plain_error_response(status: int, message: str, headers: dict[str, str]) -> Response:
    """Build the response to an unknown path or a wrong method."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    inner: Json = {"type": kind, "code": None, "param": None, "message": message}
    return json_response({"error": inner}, status, headers)


async def refuse_connection(
    error: RequestError, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer with an error; a socket gets a denial response before it is accepted."""
    await error_response(error)(scope, receive, send)
