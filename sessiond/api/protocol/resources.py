"""Objects of the Responses API in events and HTTP bodies: responses, messages, lists.

Shapes: OpenAI's JSON schemas; `schema_extensions.json` lists this server's extensions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sessiond.domain import IncompleteReason, Role, TurnError, TurnRequest, TurnUsage
from sessiond.errors import ErrorCode, RequestError

Json = dict[str, Any]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
MessageStatus = Literal["in_progress", "completed", "incomplete"]

_ERROR_TYPES: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseState:
    """The state of a turn in a response object. `request` echoes the client's request."""

    response_id: str
    session_id: str
    message_id: str
    previous_response_id: str | None
    model: str
    instructions: str | None
    created_at: float
    request: TurnRequest
    status: ResponseStatus
    text: str | None = None
    usage: TurnUsage | None = None
    reason: IncompleteReason | None = None
    error: TurnError | None = None


def response_object(state: ResponseState) -> Json:
    """Build a whole response object. `text` None means that there is no output item."""
    request = state.request
    message_status: MessageStatus = "completed" if state.status == "completed" else "incomplete"
    output = (
        [] if state.text is None else [output_message(state.message_id, state.text, message_status)]
    )
    response: Json = {
        "id": state.response_id,
        "object": "response",
        "created_at": int(state.created_at),
        "status": state.status,
        "background": request.background,
        "conversation": {"id": state.session_id},
        "error": state.error and {"code": state.error.code, "message": state.error.message},
        "incomplete_details": state.reason and {"reason": state.reason},
        "instructions": state.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata,
        "model": state.model,
        "output": output,
        "parallel_tool_calls": False,
        "previous_response_id": state.previous_response_id,
        "service_tier": "default",
        "store": request.store is not False,
        "temperature": request.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": request.top_p,
        "truncation": request.truncation or "disabled",
    }
    if state.usage is not None:
        response["usage"] = usage_object(state.usage)
        response["sessiond"] = sessiond_object(state.usage)
    return response


def usage_object(usage: TurnUsage) -> Json:
    """Build the standard usage: `cached_tokens` are those that were not computed."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def sessiond_object(usage: TurnUsage) -> Json:
    """Build the block `sessiond`: context, sources of the turn's KV, and its costs."""
    resident = "device" if usage.reused_tokens else "none"
    return {
        "reused_tokens": usage.reused_tokens,
        "restored_tokens": usage.restored_tokens,
        "recomputed_tokens": usage.recomputed_tokens,
        "restored_from": resident if usage.restored_from == "none" else usage.restored_from,
        "kv_bytes": usage.kv_bytes,
        "blocks": usage.blocks,
        "context": usage.context,
        "fidelity": usage.fidelity,
        "summary_tokens": usage.summary_tokens,
        "queue_ms": usage.queue_ms,
        "ttft_ms": usage.ttft_ms,
        "total_ms": usage.total_ms,
    }


def output_text(text: str) -> Json:
    """Build the single content part of a reply."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def output_message(message_id: str, text: str | None, status: MessageStatus) -> Json:
    """Build the message item of a reply; `text` None: it has no content yet."""
    content = [] if text is None else [output_text(text)]
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def message_item(item_id: str, role: Role, text: str, status: MessageStatus = "completed") -> Json:
    """Build a stored message, of the user or of the model."""
    if role == "assistant":
        return output_message(item_id, text, status)
    content = [{"type": "input_text", "text": text}]
    return {"id": item_id, "type": "message", "role": role, "status": status, "content": content}


def conversation_object(session_id: str, created_at: float, metadata: Mapping[str, str]) -> Json:
    """Build a conversation."""
    return {
        "id": session_id,
        "object": "conversation",
        "created_at": int(created_at),
        "metadata": dict(metadata),
    }


def list_object(data: Sequence[Json], *, has_more: bool, last_id: str | None = None) -> Json:
    """Build a page of a list. An empty page has empty ids.

    `last_id`: where the next page begins, if not after the last of `data`.
    """
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else "",
        "last_id": last_id or (data[-1]["id"] if data else ""),
        "has_more": has_more,
    }


def model_object(name: str, created_at: float) -> Json:
    """Build a model."""
    return {"id": name, "object": "model", "created": int(created_at), "owned_by": "sessiond"}


def error_object(code: ErrorCode, status: int, message: str, param: str | None = None) -> Json:
    """Build the inner error object of HTTP bodies and `error` events."""
    return {"type": _ERROR_TYPES[status], "code": code, "param": param, "message": message}


def request_error_object(error: RequestError) -> Json:
    """Build the inner error object of a refused request."""
    return error_object(error.code, error.status, error.message, error.param)
