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
from sessiond.store.context_layout import Fidelity, SummaryRef, TurnSize, VisibleSpans

FIRST_EPOCH = 1
"""Of the replica that has stored the session."""

Retention = Literal["release", "park", "hold"]
Priority = Literal["low", "normal", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The front of a context: instructions, and a system message that opened the conversation.

    Both None: the template's own default.
    """

    id: str
    text: str | None
    opening_text: str | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPrompt:
    """A front to be stored with the session or turn that uses it first."""

    id: str
    text: str | None
    opening_text: str | None
    ids: tuple[int, ...]

    @property
    def stored(self) -> Prompt:
        """How it will be read back."""
        return Prompt(
            id=self.id, text=self.text, opening_text=self.opening_text, tokens=len(self.ids)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHints:
    """The client's hints about a session's KV.

    `ttl_s`: how long `hold` lasts; None: as long as the server's setting says.
    """

    retention: Retention = "release"
    priority: Priority = "normal"
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session's row. Its context is `prompt`, then what is seen of the turns up to `tip_id`.

    `owner`: the replica that took it last; `epoch` counts how often one did.
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
    digest: str | None = None  # of all that was said up to the tip


Standing = Literal["open", "new", "begun", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChoice:
    """Which sessions are wanted: whose (`user_id` None: everybody's), how they stand by their rows.

    `new` and `begun` ones are open, without and with a finished turn. `ids`: only those of these.
    """

    user_id: str | None
    standing: Standing = "open"
    ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session to be stored. A fork has the turn it was cut at as its tip."""

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
    """A turn to be stored as running, with the items and ids that it brings (commit 1).

    `epoch`: since when this replica owns the session.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReservation:
    """What a turn takes of its user's quota, at most; unless it is renewed, until it expires."""

    turn_id: str
    tokens: int
    now: float
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTurn:
    """An ending that moves the session's tip to the turn (commit 2). `epoch`: that of commit 1.

    `view` None: the turn saw all that its parent saw and left behind.
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
    """An ending that leaves the session as it was; the row stays for inspection."""

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
    """A turn's row without its token ids. `text` is that of the reply."""

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

    @property
    def size(self) -> TurnSize:
        """What it added to its context."""
        added = (self.context_tokens or self.start_tokens) - self.start_tokens
        return TurnSize(tokens=added, awaits_reply=self.awaits_reply, view=self.view)

    @property
    def is_checkpoint(self) -> bool:
        """Whether a turn may be built on it."""
        return self.context_tokens is not None and self.deleted_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredContext:
    """What an engine needs to hold a context: all ids since its last exact state, and the edits.

    Without edits that is what the model sees. The first `computed` ids had KV in some engine once.
    """

    ids: list[int]
    computed: int
    edits: tuple[Edit, ...] = ()

    @property
    def visible_ids(self) -> list[int]:
        """What the model sees."""
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
    """A summary to be stored. It stands for a context up to and with `turn_id`.

    `token_ids`: the pair of messages that enters a context; `usage`: what its making took.
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
    """A summary that may enter a context. It was written from the first `read_tokens` of history.

    So it may stand for any whole turns among those.
    """

    ref: SummaryRef
    read_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedKey:
    """What an idempotency key stands for: a request's digest and the id of what came of it."""

    digest: str
    result_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDetail:
    """A session, the turns of its context in order, those that joined none, and its sums.

    `history_tokens` are all ids that the context's turns have added, seen or not.
    """

    session: SessionRecord
    history_tokens: int
    context: tuple[TurnRecord, ...]
    others: tuple[TurnRecord, ...]
    usage: SessionUsage
