"""Operations of turns, conversations and sessions. A test compares them with the routes."""

from sessiond.api.openapi.operation import (
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
_OR_ADMIN = "Admins may access any user's session; the audit log records it."

RESPONSES = (
    Operation(
        method="post",
        path="/v1/responses",
        name="create_response",
        about="Create a response: whole, or as events with `stream`. Also a WebSocket endpoint.",
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
        about="Read a response; with `stream`, replay its events.",
        answer="Response",
        parameters=(STREAM, STARTING_AFTER),
        media_types=_STREAM,
    ),
    Operation(
        method="delete",
        path=_RESPONSE,
        name="delete_response",
        about="Delete a response.",
        answer="Deleted",
        refusals=_BUSY,
    ),
    Operation(
        method="post",
        path=f"{_RESPONSE}/cancel",
        name="cancel_response",
        about="Cancel a response; `keep` (default true) keeps the text so far in the context.",
        answer="Response",
        body="CancelResponse",
    ),
    Operation(
        method="get",
        path=f"{_RESPONSE}/input_items",
        name="list_input_items",
        about="List the input items of a response.",
        answer="MessageList",
        parameters=(LIMIT, AFTER, ORDER),
    ),
)
CHAT = (
    Operation(
        method="post",
        path="/v1/chat/completions",
        name="create_chat_completion",
        about="Create a reply to a whole history: at once, or as chunks with `stream`.",
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
        about="Create a conversation, with or without items.",
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
        about="Replace a conversation's metadata.",
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
        about="List a conversation's items.",
        answer="MessageList",
        parameters=(LIMIT, AFTER, ORDER),
    ),
    Operation(
        method="post",
        path=f"{_CONVERSATION}/items",
        name="add_items",
        about="Append items to a conversation.",
        answer="MessageList",
        body="AddItems",
        needs_body=True,
        refusals=(409, 429, 503),
    ),
    Operation(
        method="get",
        path=f"{_CONVERSATION}/items/{{item_id}}",
        name="get_item",
        about="Read an item of a conversation.",
        answer="Message",
    ),
    Operation(
        method="delete",
        path=f"{_CONVERSATION}/items/{{item_id}}",
        name="delete_item",
        about="Refused: a context can only be truncated at turns.",
        answer="Conversation",
        refusals=(400, 409),
    ),
)
SESSIONS = (
    Operation(
        method="get",
        path="/v1/sessions",
        name="list_sessions",
        about="List sessions, latest activity first.",
        answer="SessionList",
        parameters=(LIMIT, AFTER, STATE, USER),
    ),
    Operation(
        method="get",
        path=_SESSION,
        name="get_session",
        about=f"Show a session with its memory and a page of its turns. {_OR_ADMIN}",
        answer="Session",
        parameters=(LIMIT, AFTER, INCLUDE),
    ),
    Operation(
        method="delete",
        path=_SESSION,
        name="close_session",
        about=f"Close a session. {_OR_ADMIN}",
        answer="Deleted",
        refusals=_BUSY,
    ),
    Operation(
        method="post",
        path=f"{_SESSION}/fork",
        name="fork_session",
        about="Fork a session at its current state or at one of its responses.",
        answer="Session",
        body="AtResponse",
        refusals=(409, 429, 503),
    ),
    Operation(
        method="post",
        path=f"{_SESSION}/reset",
        name="reset_session",
        about=f"Reset a session to one of its responses or to its instructions. {_OR_ADMIN}",
        answer="Session",
        body="AtResponse",
        refusals=_BUSY,
    ),
    Operation(
        method="post",
        path=f"{_SESSION}/park",
        name="park_session",
        about=f"Move a session's KV from the device to lower tiers. {_OR_ADMIN}",
        answer="Session",
        refusals=_BUSY,
    ),
    Operation(
        method="put",
        path=f"{_SESSION}/policy",
        name="set_session_policy",
        about=f"Set a session's context policy, effective from its next turn. {_OR_ADMIN}",
        answer="Session",
        body="Policy",
        needs_body=True,
        refusals=_BUSY,
    ),
    Operation(
        method="delete",
        path=f"{_SESSION}/policy",
        name="clear_session_policy",
        about=f"Revert to the context policy of the user or the server. {_OR_ADMIN}",
        answer="Session",
        refusals=_BUSY,
    ),
)
CONVERSATION_OPERATIONS = (*RESPONSES, *CHAT, *CONVERSATIONS, *SESSIONS)
