"""Errors raised by several parts of the service. Pure."""

from sessiond.domain import DegradationLevel
from sessiond.errors import ErrorCode, RequestError


def degradation_of(code: ErrorCode) -> DegradationLevel | None:
    """The degradation step of an error code; None: not caused by pressure."""
    match code:
        case "request_too_large":
            return "refuse_impossible"
        case "queue_timeout":
            return "queue_timeout"
        case "queue_full":
            return "refuse_new"
        case _:
            return None


def busy(session_id: str) -> RequestError:
    """A turn of another origin runs in the session, so the caller can't queue behind it."""
    return RequestError(
        "turn_in_progress", f"a turn is in progress in {session_id}", param="conversation"
    )


def conversation_not_found(session_id: str) -> RequestError:
    """There is no such open session for the caller."""
    return RequestError(
        "conversation_not_found", f"there is no conversation {session_id!r}", param="conversation"
    )


def response_not_found(response_id: str, *, param: str = "previous_response_id") -> RequestError:
    """There is no such finished turn for the caller."""
    return RequestError(
        "previous_response_not_found",
        f"there is no finished response {response_id!r}",
        param=param,
    )
