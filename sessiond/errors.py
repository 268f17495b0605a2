"""Errors sent to clients, by the codes of the contract."""

from collections.abc import Mapping
from typing import Literal

ErrorCode = Literal[
    "invalid_json",
    "invalid_value",
    "unsupported_parameter",
    "context_length_exceeded",
    "invalid_api_key",
    "permission_denied",
    "previous_response_not_found",
    "conversation_not_found",
    "model_not_found",
    "not_found",
    "turn_in_progress",
    "idempotency_conflict",
    "request_too_large",
    "rate_limit_exceeded",
    "quota_exceeded",
    "queue_full",
    "queue_timeout",
    "engine_restarted",
    "internal_error",
    "draining",
]

STATUS: dict[ErrorCode, int] = {
    "invalid_json": 400,
    "invalid_value": 400,
    "unsupported_parameter": 400,
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "permission_denied": 403,
    "previous_response_not_found": 404,
    "conversation_not_found": 404,
    "model_not_found": 404,
    "not_found": 404,
    "turn_in_progress": 409,
    "idempotency_conflict": 409,
    "request_too_large": 413,
    "rate_limit_exceeded": 429,
    "quota_exceeded": 429,
    "queue_full": 429,
    "queue_timeout": 429,
    "engine_restarted": 500,
    "internal_error": 500,
    "draining": 503,
}


class RequestError(Exception):
    """A request that can't be served, with the error sent to the client.

    `headers` are sent with `Retry-After`: as HTTP headers or, on a socket, in the event.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        """The HTTP status that goes with the code."""
        return STATUS[self.code]
