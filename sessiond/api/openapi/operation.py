"""One operation of the HTTP API, and parameters that several operations share."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from sessiond.api.http import DEFAULT_PAGE, MAX_PAGE
from sessiond.api.openapi.words import BOOLEAN, STRING, array, integer, words
from sessiond.api.protocol.fields import MAX_INT
from sessiond.api.protocol.requests import MAX_IDEMPOTENCY_KEY
from sessiond.api.protocol.resources import Json
from sessiond.api.sessions_api import INCLUDABLE
from sessiond.domain import SessionState

Method = Literal["get", "post", "put", "delete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter in the query or in a header."""

    name: str
    schema: Json
    about: str
    place: Literal["query", "header"] = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path. `answer` and `body` name schemas of the document.

    `refusals`: error statuses in addition to the implied ones, which are 400 and 413 if input is
    read, 404 if the path contains an id, and 401, 403 and 500 always.
    """

    method: Method
    path: str
    name: str
    about: str
    answer: str
    status: int = 200
    parameters: tuple[Parameter, ...] = ()
    body: str | None = None
    needs_body: bool = False
    media_types: tuple[str, ...] = ("application/json",)
    refusals: tuple[int, ...] = ()
    headers: tuple[str, ...] = ()
    other_answers: dict[int, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """The operation's group, taken from its path."""
        words = self.path.strip("/").split("/")
        return words[1] if words[0] == "v1" else words[0] or "console"


LIMIT = Parameter(
    name="limit",
    schema=integer(1, MAX_PAGE) | {"default": DEFAULT_PAGE},
    about="Maximum number of entries.",
)
AFTER = Parameter(name="after", schema=STRING, about="The id after which the page begins.")
STATE = Parameter(
    name="state",
    schema=words(get_args(SessionState)),
    about="Only sessions in this state; by default open ones.",
)
USER = Parameter(
    name="user", schema=STRING, about="Another user's sessions, `*` for all users'. For admins."
)
AFTER_ROW = Parameter(
    name="after",
    schema={"type": "string", "pattern": "^[0-9]{1,9}$"},
    about="The id of the row after which the page begins.",
)
ORDER = Parameter(
    name="order", schema=words(["asc", "desc"]) | {"default": "desc"}, about="Order by time."
)
INCLUDE = Parameter(
    name="include", schema=array(words(INCLUDABLE)), about="Additional parts to include."
)
SESSION_ID = Parameter(
    name="X-Session-Id", schema=STRING, about="Echoed unchanged.", place="header"
)
IDEMPOTENCY_KEY = Parameter(
    name="Idempotency-Key",
    schema={"type": "string", "pattern": f"^[!-~]([ -~]{{0,{MAX_IDEMPOTENCY_KEY - 2}}}[!-~])?$"},
    about="A repeated request with the same key is executed once.",
    place="header",
)
STREAM = Parameter(name="stream", schema=BOOLEAN, about="Replay the events.")
STARTING_AFTER = Parameter(
    name="starting_after",
    schema=integer(0, MAX_INT),
    about="With `stream`: the sequence number after which the events begin.",
)
