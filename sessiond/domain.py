"""Domain types shared by gateway, sessions and store. Frozen; no I/O, no behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NewType

from engine.ipc.messages import Degradation, DegradationReason
from sessiond.errors import ErrorCode

Role = Literal["system", "developer", "user", "assistant"]
AttachmentId = NewType("AttachmentId", str)
"""One open socket. An HTTP request has none."""


class Unset(Enum):
    """Marks a field as absent, as opposed to null."""

    UNSET = "unset"


UNSET = Unset.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The authenticated caller. `salt` separates the cached blocks of users; never from a request.

    `key_id` None: no key was required.
    """

    user_id: str
    is_admin: bool
    salt: bytes
    key_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputItem:
    """One message of a turn's input."""

    role: Role
    text: str
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """A context policy: its name, its parameters, and the fidelity of its edits.

    `oversize`: handling of a turn that is too long for any context, if its request explicitly
    allows truncation. `under_pressure`: whether old turns may be dropped when memory is short.
    """

    type: str
    parameters: Mapping[str, int | float | str] = field(default_factory=dict)
    fidelity: Literal["exact", "shifted"] = "exact"
    oversize: Literal["refuse", "keep_end"] = "refuse"
    under_pressure: Literal["keep", "trim_history"] = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A validated `response.create`. None means not given."""

    model: str | None = None
    input: tuple[InputItem, ...] = ()
    instructions: str | Unset | None = UNSET
    conversation: str | None = None
    previous_response_id: str | None = None
    generate: bool = True
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # ids and what is added to their logits
    truncation: Literal["auto", "disabled"] | None = None
    policy: PolicyChoice | None = None
    deadline_ms: int | None = None
    priority: Literal["low", "normal", "high"] | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    store: bool | None = None  # false: the session is in memory only
    background: bool = False  # the turn continues when its client disconnects


# --- events of a turn, in order: TurnAccepted, then these, then one TurnFinished ----------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAccepted:
    """The turn is bound to a session and stored (commit 1): `response.created`."""

    response_id: str
    session_id: str
    message_id: str
    previous_response_id: str | None
    model: str
    instructions: str | None
    created_at: float
    request: TurnRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQueued:
    """The turn waits for the engine: `response.queued`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBegun:
    """The engine runs the turn: `response.in_progress`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWaiting:
    """What the turn waits for: `session.waiting`.

    `position`: its place among the waiting turns, from 1. `since_ms`: since the request arrived.
    """

    session_id: str
    response_id: str
    cause: Literal["slot", "blocks"]
    position: int
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """More of the reply."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextChanged:
    """The visible context has changed: `session.context_changed`."""

    session_id: str
    reason: str
    dropped_turns: int
    tokens_before: int
    tokens_after: int
    context: Literal["full", "trimmed", "summarized"] = "full"
    fidelity: Literal["exact", "shifted"] = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDegraded:
    """Memory pressure or a higher priority affects the turn: `session.degraded`.

    Steps and reasons: `engine.ipc.messages`.
    """

    session_id: str
    step: Degradation
    reason: DegradationReason = "memory_pressure"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryOverdue:
    """The context has outgrown a threshold without a summary: `session.summary_overdue`.

    `tokens`: of the context before the turn.
    """

    session_id: str
    tokens: int
    threshold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnUsage:
    """Tokens, milliseconds and memory of one turn. input = reused + restored + recomputed + new.

    `restored_from`: the slowest tier that KV was restored from. `context`, `fidelity` and
    `summary_tokens` (part of the input) describe the context that the model saw.
    """

    reused_tokens: int = 0
    restored_tokens: int = 0
    restored_from: Literal["none", "host", "disk"] = "none"
    recomputed_tokens: int = 0
    new_tokens: int = 0
    output_tokens: int = 0
    kv_bytes: int = 0
    blocks: int = 0
    queue_ms: float = 0.0
    ttft_ms: float | None = None
    total_ms: float = 0.0
    context: Literal["full", "trimmed", "summarized"] = "full"
    fidelity: Literal["exact", "shifted"] = "exact"
    summary_tokens: int = 0

    @property
    def input_tokens(self) -> int:
        """All tokens before the reply."""
        return self.cached_tokens + self.recomputed_tokens + self.new_tokens

    @property
    def cached_tokens(self) -> int:
        """Tokens whose KV was not computed in this turn."""
        return self.reused_tokens + self.restored_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnError:
    """Why a turn failed."""

    code: ErrorCode
    message: str


TurnStatus = Literal["completed", "incomplete", "failed"]
IncompleteReason = Literal[
    "max_output_tokens", "cancelled", "deadline", "memory_pressure", "context_length"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """The last event of a turn. Sent only after commit 2."""

    status: TurnStatus
    text: str
    usage: TurnUsage
    reason: IncompleteReason | None = None
    error: TurnError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReport:
    """A turn that has ended, with its first and last event; times in unix seconds."""

    accepted: TurnAccepted
    finished: TurnFinished
    received_at: float
    ended_at: float


TurnLogEntry = (
    TurnQueued
    | SessionWaiting
    | TurnBegun
    | TextDelta
    | ContextChanged
    | SummaryOverdue
    | SessionDegraded
    | TurnFinished
)


DegradationLevel = Literal[
    "refuse_impossible", "queue", "queue_timeout", "refuse_new", "trim_history"
]
"""Degradation steps before the engine runs a turn; the others: `engine.ipc.messages`."""

# --- stored records, as clients see them -----------------------------------------------------

SessionState = Literal["new", "idle", "running", "parked", "cold", "closed"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
StoredTurnStatus = Literal["running", "completed", "incomplete", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemView:
    """One stored message of a conversation. `created_at` is in unix seconds."""

    id: str
    session_id: str
    response_id: str
    role: Role
    text: str
    status: ItemStatus
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPage:
    """Items in the requested order; `has_more`: further items follow."""

    items: tuple[ItemView, ...]
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationResource:
    """A conversation as `/v1/conversations` returns it. `created_at` is in unix seconds."""

    id: str
    created_at: float
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseView:
    """A stored turn: the content of `response.created` and, after its end, the result.

    `accepted.request.input` is empty: the items are `input_items`.
    """

    accepted: TurnAccepted
    finished: TurnFinished | None
    finished_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSummary:
    """One message-bearing part of a session's context: the turn's input, or its reply.

    It covers `tokens` tokens from `start`, counted in the whole history after the current system
    prefix; `kept` of them are visible now.
    """

    response_id: str
    role: Literal["system", "user", "assistant"]
    start: int
    tokens: int
    kept: int
    status: StoredTurnStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCounts:
    """Blocks by tier; `shared`: device blocks that other sessions hold, too."""

    device: int = 0
    host: int = 0
    disk: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteCounts:
    """Bytes of KV by tier."""

    device: int = 0
    host: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUsage:
    """Tokens of all turns of a session, whatever their status."""

    turns: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """One page-table entry: a block's valid slots `first` to `last`, its base position."""

    block: int
    first: int
    last: int
    base: int
    references: int
    hashed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStats:
    """Counts of what the service keeps in memory.

    `cold`: sessions in memory without KV, at most `max_cold`. `replay_bytes` are at most
    `max_replay_bytes`. `turns` run or wait. `session_ttl_s` 0 means no expiry.
    """

    sessions_in_memory: int
    cold: int
    max_cold: int
    turns: int
    replays: int
    replay_bytes: int
    max_replay_bytes: int
    session_ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """A session as `GET /v1/sessions/{id}` returns it, with the wire's field names and order.

    In a list `turns` is empty. `page_table` is None unless requested.
    """

    id: str
    user: str
    model: str
    state: SessionState
    tier: Literal["device", "host", "disk", "none"]
    policy: str
    retention: str
    priority: str
    fidelity: str
    created_at: float
    last_active_at: float
    turns: tuple[TurnSummary, ...]
    turns_after: str | None
    tokens_total: int
    tokens_kept: int
    blocks: BlockCounts
    kv_bytes: ByteCounts
    usage: SessionUsage
    instructions: str | None = None
    page_table: tuple[PageRow, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """Filter of a session list. `state` None: open ones. `user_id` None: the caller's."""

    state: SessionState | None = None
    user_id: str | None = None


EVERYBODY = "*"
"""Stands for all users in `SessionFilter.user_id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """Sessions by latest activity; `has_more`: further sessions follow after `last_id`."""

    sessions: tuple[SessionView, ...]
    has_more: bool
    last_id: str | None
