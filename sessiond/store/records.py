"""Records of the store. Frozen; times in unix seconds."""

from dataclasses import dataclass, field
from typing import Any, Literal

from engine.ipc.messages import Edit
from sessiond.domain import (
    IncompleteReason,
    ItemView,
    SessionUsage,
    StoredTurnStatus,
    TurnError,
    TurnStatus,
    TurnUsage,
)
from sessiond.store.context_layout import Fidelity, Span, SummaryRef, TurnSize, VisibleSpans

FIRST_EPOCH = 1
"""Epoch of the replica that stores the session."""

Retention = Literal["release", "park", "hold"]
Priority = Literal["low", "normal", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A system prefix: instructions, and a system message that opens the conversation.

    Both None: the template's default.
    """

    id: str
    text: str | None
    opening_text: str | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPrompt:
    """A system prefix to be stored with the first session or turn that uses it."""

    id: str
    text: str | None
    opening_text: str | None
    ids: tuple[int, ...]

    @property
    def stored(self) -> Prompt:
        """The record after it is stored."""
        return Prompt(
            id=self.id, text=self.text, opening_text=self.opening_text, tokens=len(self.ids)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHints:
    """The client's hints about a session's KV.

    `ttl_s`: how long `hold` lasts; None: the server's setting.
    """

    retention: Retention = "release"
    priority: Priority = "normal"
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session's row. Its context is `prompt`, then the visible turns up to `tip_id`.

    `owner`: the replica that claimed it last; `epoch` counts the claims.
    `context_policy`: the session's own, as JSON; None: that of the user, or the server.
    """

    id: str
    user_id: str
    model: str
    vocab_size: int
    prompt: Prompt
    tip_id: str | None
    context_tokens: int
    awaits_reply: bool
    hints: SessionHints
    context_policy: dict[str, Any] | None
    fidelity: str
    metadata: dict[str, str]
    created_at: float
    last_active_at: float
    closed_at: float | None
    owner: str | None
    epoch: int
    digest: str | None = None  # of all messages up to the tip
    usage: SessionUsage | None = None  # None: of an older version, which did not count


Standing = Literal["open", "new", "begun", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChoice:
    """A filter of sessions by user (`user_id` None: all users) and by state of their rows.

    `new` and `begun` ones are open, without and with a finished turn. `ids`: only these; None: all.
    """

    user_id: str | None
    standing: Standing = "open"
    ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session to be stored. The tip of a fork is the turn that it was forked at."""

    id: str
    user_id: str
    model: str
    vocab_size: int
    prompt_id: str
    tip_id: str | None
    context_tokens: int
    created_at: float
    metadata: dict[str, str] = field(default_factory=dict)
    hints: SessionHints = field(default_factory=SessionHints)
    context_policy: dict[str, Any] | None = None
    fidelity: Fidelity = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTurn:
    """A turn to be stored as running, with its items and input ids (commit 1).

    `epoch`: ownership epoch of this replica. `parts`: see `TurnSize`.
    """

    id: str
    user_id: str
    session_id: str
    parent_id: str | None
    prompt_id: str
    message_id: str
    model: str
    generate: bool
    awaits_reply: bool
    request: dict[str, Any]
    previous_response_id: str | None
    seed: int
    start_tokens: int
    input_ids: tuple[int, ...]
    items: tuple[ItemView, ...]
    created_at: float
    epoch: int
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReservation:
    """A turn's worst case in its user's quota, until `expires_at` unless renewed."""

    turn_id: str
    tokens: int
    now: float
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTurn:
    """An ending that moves the session's tip to the turn (commit 2). `epoch`: that of commit 1.

    `view` None: the turn's context was the whole context after its parent.
    """

    id: str
    user_id: str
    session_id: str
    parent_id: str | None
    prompt_id: str
    status: TurnStatus
    reason: IncompleteReason | None
    reply_ids: tuple[int, ...]
    reply: ItemView | None
    context_tokens: int
    usage: TurnUsage
    finished_at: float
    epoch: int
    view: VisibleSpans | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTurn:
    """An ending that leaves the session unchanged; the row stays for inspection."""

    id: str
    user_id: str
    status: StoredTurnStatus
    reason: IncompleteReason | None
    error: TurnError | None
    reply: ItemView | None
    usage: TurnUsage
    finished_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """A turn's row without its token ids."""

    id: str
    user_id: str
    session_id: str
    parent_id: str | None
    prompt: Prompt
    message_id: str
    model: str
    status: StoredTurnStatus
    generate: bool
    awaits_reply: bool
    request: dict[str, Any]
    previous_response_id: str | None
    seed: int
    start_tokens: int
    input_tokens: int
    context_tokens: int | None
    reason: IncompleteReason | None
    error: TurnError | None
    usage: TurnUsage
    created_at: float
    finished_at: float | None
    deleted_at: float | None
    view: VisibleSpans | None
    digest: str | None = None
    parts: tuple[int, ...] = ()

    @property
    def size(self) -> TurnSize:
        """The turn's addition to its context."""
        added = (self.context_tokens or self.start_tokens) - self.start_tokens
        return TurnSize(
            tokens=added, awaits_reply=self.awaits_reply, view=self.view, parts=self.parts
        )

    @property
    def is_checkpoint(self) -> bool:
        """Whether a turn may continue it."""
        return self.context_tokens is not None and self.deleted_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredContext:
    """A context as it is sent to an engine: the ids of its last exact state and since, and edits.

    Without edits the ids are the visible ones. An engine has computed KV of the first `computed`.
    """

    ids: list[int]
    computed: int
    edits: tuple[Edit, ...] = ()

    @property
    def visible_ids(self) -> list[int]:
        """The ids that the model sees."""
        visible: list[int] = []
        rest = list(self.ids)
        for edit in self.edits:
            count = edit.at - len(visible)
            visible += rest[:count]
            del rest[:count]
            for start, stop in reversed(edit.dropped):
                del visible[start:stop]
        return visible + rest


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSummary:
    """A summary to be stored, written from a context up to and including `turn_id`.

    `token_ids`: the pair of messages that enters a context; `usage`: that of its writing.
    """

    id: str
    user_id: str
    session_id: str
    turn_id: str
    token_ids: tuple[int, ...]
    text: str
    usage: TurnUsage
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSummary:
    """A summary that may enter a context, written from the first `read_tokens` of history.

    It may stand for any number of whole turns among these, from the first on.
    """

    ref: SummaryRef
    read_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedKey:
    """The request of an idempotency key: its digest and the id of its result."""

    digest: str
    result_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDetail:
    """A session, a page of the turns of its context in order, other turns, and its total usage.

    `history_tokens`: ids that the context's turns have added, visible or not; those up to
    `page_end` by turns up to the page's last. `seen`: visible spans. `has_more`: turns precede it.
    """

    session: SessionRecord
    history_tokens: int
    context: tuple[TurnRecord, ...]
    others: tuple[TurnRecord, ...]
    usage: SessionUsage
    page_end: int = 0
    seen: tuple[Span, ...] = ()
    has_more: bool = False
