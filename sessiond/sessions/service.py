"""Conversations and their turns: binds, stores, runs, ends. One asyncio loop; owns what is live."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal

from engine.client import EngineClient
from sessiond.facts import (
    AttachmentId,
    Caller,
    ConversationView,
    InputItem,
    ItemPage,
    ItemView,
    ResponseView,
    SessionPage,
    SessionView,
    TurnAccepted,
    TurnFact,
    TurnRequest,
)
from sessiond.sessions.text_format import TextFormat

CancelReason = Literal["cancelled", "disconnected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Bounds of the service. Seconds and tokens; 0 timeouts are off."""

    default_max_output_tokens: int = 1024
    max_outstanding: int = 1024
    turn_timeout_s: float = 0.0
    queue_timeout_s: float = 0.0
    http_hold_s: float = 60.0
    engine_ready_timeout_s: float = 30.0
    drain_timeout_s: float = 30.0
    reap_every_s: float = 1.0
    max_cold_contexts: int = 1024


class BoundTurn:
    """A request that holds its place in a session. Ends in `run` or in `drop`."""

    @property
    def session_id(self) -> str:
        """The session that the turn will be part of."""
        raise NotImplementedError

    @property
    def response_id(self) -> str:
        """The turn's own id."""
        raise NotImplementedError


class Turn:
    """A stored turn that the engine works on. Goes on and is stored whether or not it is read."""

    @property
    def accepted(self) -> TurnAccepted:
        """What `response.created` says."""
        raise NotImplementedError

    def facts(self) -> AsyncIterator[TurnFact]:
        """What becomes of the turn; once, by one task. The last fact is the one `TurnFinished`.

        A slow reader finds waiting deltas merged into one.
        """
        raise NotImplementedError

    def cancel(self, keep: bool, reason: CancelReason = "cancelled") -> None:
        """Stop within one step. Twice, or after the end: nothing happens."""
        raise NotImplementedError


class SessionService:
    """See the module. Errors that the caller is told are raised as `RequestError`."""

    def __init__(  # noqa: PLR0913 -- the whole wiring, each part by its name
        self,
        *,
        store: Any,
        engine: EngineClient,
        text: TextFormat,
        limits: ServiceLimits,
        clock: Callable[[], float],
        new_id: Callable[[str], str],
        new_seed: Callable[[], int],
    ) -> None:
        """`clock` gives unix seconds; `new_id("resp")` gives `resp_…`, never the same twice."""

    async def start(self) -> None:
        """Mark what an earlier run left running as failed; start the reaper."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Refuse new turns, wait for those that run, then cancel them with what they have."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End every task. The store and the engine are the caller's to stop."""
        raise NotImplementedError

    async def bind(
        self,
        caller: Caller,
        request: TurnRequest,
        *,
        attachment: AttachmentId | None,
        lane: str | None,
    ) -> BoundTurn:
        """Decide at receipt where the turn belongs, and hold that place."""
        raise NotImplementedError

    async def run(self, bound: BoundTurn) -> Turn:
        """Wait for the place in the lane, store the turn (commit 1), hand it to the engine."""
        raise NotImplementedError

    async def drop(self, bound: BoundTurn) -> None:
        """Give up a place that was not run."""
        raise NotImplementedError

    async def cancel(
        self,
        caller: Caller,
        response_id: str | None,
        *,
        attachment: AttachmentId | None,
        keep: bool,
    ) -> None:
        """Cancel a turn; None: all turns that the attachment has begun. Ended turns are fine."""
        raise NotImplementedError

    def attach(self, attachment: AttachmentId) -> None:
        """A socket came."""
        raise NotImplementedError

    async def detach(self, attachment: AttachmentId) -> None:
        """A socket left: sessions that no other holds are cancelled, rolled back and released."""
        raise NotImplementedError

    async def hold(self, session_id: str, seconds: float) -> None:
        """Keep an unattached session's KV for so long from now."""
        raise NotImplementedError

    async def list_sessions(self, caller: Caller, limit: int, after: str | None) -> SessionPage:
        """The caller's open sessions, latest activity first; `after` is the id of the last seen."""
        raise NotImplementedError

    async def get_session(
        self, caller: Caller, session_id: str, *, include_page_table: bool = False
    ) -> SessionView:
        """One session with its turns and what it holds."""
        raise NotImplementedError

    async def reset_session(self, caller: Caller, session_id: str) -> SessionView:
        """Empty the context but for the instructions. Busy: `turn_in_progress`."""
        raise NotImplementedError

    async def close_session(self, caller: Caller, session_id: str) -> None:
        """Cancel what runs, give back all KV, end the session."""
        raise NotImplementedError

    async def create_conversation(
        self, caller: Caller, items: tuple[InputItem, ...], metadata: dict[str, str]
    ) -> ConversationView:
        """Open a session with items in its context and nothing computed."""
        raise NotImplementedError

    async def get_conversation(self, caller: Caller, session_id: str) -> ConversationView:
        """An open session as a conversation."""
        raise NotImplementedError

    async def update_conversation(
        self, caller: Caller, session_id: str, metadata: dict[str, str]
    ) -> ConversationView:
        """Replace its metadata."""
        raise NotImplementedError

    async def delete_conversation(self, caller: Caller, session_id: str) -> None:
        """The same as `close_session`."""
        raise NotImplementedError

    async def list_items(
        self,
        caller: Caller,
        session_id: str,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Literal["asc", "desc"] = "desc",
    ) -> ItemPage:
        """The messages in the session's context."""
        raise NotImplementedError

    async def add_items(
        self, caller: Caller, session_id: str, items: tuple[InputItem, ...]
    ) -> tuple[ItemView, ...]:
        """Append messages to the context; nothing is computed. Busy: `turn_in_progress`."""
        raise NotImplementedError

    async def get_item(self, caller: Caller, session_id: str, item_id: str) -> ItemView:
        """One message of the session's context."""
        raise NotImplementedError

    async def delete_item(self, caller: Caller, session_id: str, item_id: str) -> None:
        """Refused: a context is cut at turns only."""
        raise NotImplementedError

    async def get_response(self, caller: Caller, response_id: str) -> ResponseView:
        """A stored turn, whatever became of it."""
        raise NotImplementedError

    async def input_items(
        self,
        caller: Caller,
        response_id: str,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Literal["asc", "desc"] = "desc",
    ) -> ItemPage:
        """The messages that came with the turn."""
        raise NotImplementedError

    async def delete_response(self, caller: Caller, response_id: str) -> None:
        """Forget the id. What it added stays in the contexts that were built on it."""
        raise NotImplementedError
