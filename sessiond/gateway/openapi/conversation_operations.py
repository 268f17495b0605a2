"""Operations of turns, conversations and sessions. A test compares them with the routes."""

from sessiond.gateway.openapi.operation import (
    AFTER,
    IDEMPOTENCY_KEY,
    INCLUDE,
    LIMIT,
    ORDER,
    SESSION_ID,
    STARTING_AFTER,
    STATE,
    STREAM,
    USER,
    Operation,
)
from sessiond.quota import RATE_HEADERS

_STREAM = ("application/json", "text/event-stream")
_TURN_HEADERS = ("X-Session-Id", *RATE_HEADERS)
_BUSY = (409,)
_RESPONSE = "/v1/responses/{response_id}"
_CONVERSATION = "/v1/conversations/{session_id}"
_SESSION = "/v1/sessions/{session_id}"
_OR_ADMIN = "Admins may do so with any user's session; it is written down."

RESPONSES = (
    Operation(
        method="post",
        path="/v1/responses",
        name="create_response",
        about="Write a reply: whole, or as events with `stream`. The same path is a WebSocket.",
        answer="Response",
        parameters=(SESSION_ID, IDEMPOTENCY_KEY),
        body="CreateResponse",
        needs_body=True,
        media_types=_STREAM,
        refusals=(404, 409, 429, 503),
        headers=_TURN_HEADERS,
    ),
    Operation(
        method="get",
        path=_RESPONSE,
        name="get_response",
        about="Read a response; with `stream` its events, once more.",
        answer="Response",
        parameters=(STREAM, STARTING_AFTER),
        media_types=_STREAM,
    ),
    Operation(
        method="delete",
        path=_RESPONSE,
        name="delete_response",
        about="Forget a response.",
        answer="Deleted",
        refusals=_BUSY,
    ),
    Operation(
        method="post",
        path=f"{_RESPONSE}/cancel",
        name="cancel_response",
        about="Stop a reply; `keep` (default true) leaves what is written in the context.",
        answer="Response",
        body="CancelResponse",
    ),
    Operation(
        method="get",
        path=f"{_RESPONSE}/input_items",
        name="list_input_items",
        about="List the items that a response answers.",
        answer="MessageList",
        parameters=(LIMIT, AFTER, ORDER),
    ),
)
CHAT = (
    Operation(
        method="post",
        path="/v1/chat/completions",
        name="create_chat_completion",
        about="Write a reply to a history that is sent whole: at once, or as chunks with `stream`.",
        answer="ChatCompletion",
        parameters=(SESSION_ID,),
        body="CreateChatCompletion",
        needs_body=True,
        media_types=_STREAM,
        refusals=(404, 409, 429, 503),
        headers=_TURN_HEADERS,
    ),
)
CONVERSATIONS = (
    Operation(
        method="post",
        path="/v1/conversations",
        name="create_conversation",
        about="Begin a conversation, with items or without.",
        answer="Conversation",
        parameters=(IDEMPOTENCY_KEY,),
        body="CreateConversation",
        refusals=(409, 429, 503),
    ),
    Operation(
        method="get",
        path=_CONVERSATION,
        name="get_conversation",
        about="Read a conversation.",
        answer="Conversation",
    ),
    Operation(
        method="post",
        path=_CONVERSATION,
        name="update_conversation",
        about="Replace its metadata.",
        answer="Conversation",
        body="UpdateConversation",
        refusals=_BUSY,
    ),
    Operation(
        method="delete",
        path=_CONVERSATION,
        name="delete_conversation",
        about="Delete a conversation.",
        answer="Deleted",
        refusals=_BUSY,
    ),
    Operation(
        method="get",
        path=f"{_CONVERSATION}/items",
        name="list_items",
        about="List its items.",
        answer="MessageList",
        parameters=(LIMIT, AFTER, ORDER),
    ),
    Operation(
        method="post",
        path=f"{_CONVERSATION}/items",
        name="add_items",
        about="Append items.",
        answer="MessageList",
        body="AddItems",
        needs_body=True,
        refusals=(409, 429, 503),
    ),
    Operation(
        method="get",
        path=f"{_CONVERSATION}/items/{{item_id}}",
        name="get_item",
        about="Read an item.",
        answer="Message",
    ),
    Operation(
        method="delete",
        path=f"{_CONVERSATION}/items/{{item_id}}",
        name="delete_item",
        about="Refused: a context is cut at turns only.",
        answer="Conversation",
        refusals=(400, 409),
    ),
)
SESSIONS = (
    Operation(
        method="get",
        path="/v1/sessions",
        name="list_sessions",
        about="List sessions, the latest activity first.",
        answer="SessionList",
        parameters=(LIMIT, AFTER, STATE, USER),
    ),
    Operation(
        method="get",
        path=_SESSION,
        name="get_session",
        about=f"Show what a session holds. {_OR_ADMIN}",
        answer="Session",
        parameters=(INCLUDE,),
    ),
    Operation(
        method="delete",
        path=_SESSION,
        name="close_session",
        about=f"End a session. {_OR_ADMIN}",
        answer="Deleted",
        refusals=_BUSY,
    ),
    Operation(
        method="post",
        path=f"{_SESSION}/fork",
        name="fork_session",
        about="Begin another session where this one stands, or at one of its responses.",
        answer="Session",
        body="AtResponse",
        refusals=(409, 429, 503),
    ),
    Operation(
        method="post",
        path=f"{_SESSION}/reset",
        name="reset_session",
        about=f"Set it back to one of its responses, or to its instructions. {_OR_ADMIN}",
        answer="Session",
        body="AtResponse",
        refusals=_BUSY,
    ),
    Operation(
        method="post",
        path=f"{_SESSION}/park",
        name="park_session",
        about=f"Free the memory of the device; keep what can be kept below. {_OR_ADMIN}",
        answer="Session",
        refusals=_BUSY,
    ),
    Operation(
        method="put",
        path=f"{_SESSION}/policy",
        name="set_session_policy",
        about=f"Set its context policy, from the next turn on. {_OR_ADMIN}",
        answer="Session",
        body="Policy",
        needs_body=True,
        refusals=_BUSY,
    ),
    Operation(
        method="delete",
        path=f"{_SESSION}/policy",
        name="clear_session_policy",
        about=f"Let the policy of the user, or the server, hold. {_OR_ADMIN}",
        answer="Session",
        refusals=_BUSY,
    ),
)
CONVERSATION_OPERATIONS = (*RESPONSES, *CHAT, *CONVERSATIONS, *SESSIONS)
