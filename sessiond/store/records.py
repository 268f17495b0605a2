"""What goes into the store and comes out of it. Frozen; times in unix seconds."""

from dataclasses import dataclass, field
from typing import Any

from sessiond.facts import (
    IncompleteReason,
    ItemView,
    SessionUsage,
    StoredTurnStatus,
    TurnError,
    TurnStatus,
    TurnUsage,
)


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
class SessionRecord:
    """A session's row. Its context is `prompt`, then the chain of turns that ends in `tip_id`."""

    id: str
    user_id: str
    model: str
    vocab_size: int
    prompt: Prompt
    tip_id: str | None
    context_tokens: int
    awaits_reply: bool
    retention: str
    priority: str
    fidelity: str
    metadata: dict[str, str]
    created_at: float
    last_active_at: float
    closed_at: float | None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTurn:
    """A turn to be stored as running, with the items and ids that it brings (commit 1)."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTurn:
    """An ending that moves the session's tip to the turn (commit 2)."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTurn:
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

    @property
    def is_checkpoint(self) -> bool:
        """Whether a turn may be built on it."""
        return self.context_tokens is not None and self.deleted_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredContext:
    """The ids of a context; the first `computed` of them had KV in some engine once."""

    ids: list[int]
    computed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDetail:
    """A session, the turns of its context in order, those that joined none, and its sums."""

    session: SessionRecord
    context: tuple[TurnRecord, ...]
    others: tuple[TurnRecord, ...]
    usage: SessionUsage
