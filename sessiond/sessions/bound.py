"""A request bound to a session, from receipt to the end of its turn."""

import asyncio
from typing import Literal, Protocol

from sessiond.facts import AttachmentId, Caller, TurnRequest
from sessiond.sessions.live import LiveSession
from sessiond.sessions.seat import Claim

CancelReason = Literal["cancelled", "disconnected"]
StopReason = Literal["cancelled", "disconnected", "deadline", "queue_timeout"]


class Cancellable(Protocol):
    """A turn that the engine runs."""

    def cancel(self, keep: bool, reason: CancelReason = "cancelled") -> None:
        """Stop the turn; a repeated call, or one after the end, has no effect."""
        ...


class BoundTurn:
    """Ends in `SessionService.run` or `.drop`; `ended` is set when no work is left.

    `stopped`: it was cancelled, possibly before the engine got it.
    """

    def __init__(  # noqa: PLR0913 -- a record of what was decided, each part by its name
        self,
        *,
        caller: Caller,
        request: TurnRequest,
        attachment: AttachmentId | None,
        live: LiveSession,
        claim: Claim,
        response_id: str,
        message_id: str,
        received_at: float,
    ) -> None:
        self.caller = caller
        self.request = request
        self.attachment = attachment
        self.live = live
        self.claim = claim
        self.response_id = response_id
        self.message_id = message_id
        self.received_at = received_at
        self.begun = False
        self.key: str | None = None  # its idempotency key
        self.ended = asyncio.Event()
        self.stopped = asyncio.Event()
        self.is_told = asyncio.Event()  # its events have started, or never will
        self._turn: Cancellable | None = None
        self._stop: tuple[bool, CancelReason] | None = None

    @property
    def session_id(self) -> str:
        """The session that the turn will be part of."""
        return self.live.id

    @property
    def owner(self) -> str | None:
        """The user who waits for the turn; None: it runs in the background."""
        return None if self.request.background else self.caller.user_id

    def stop(self, keep: bool, reason: CancelReason = "cancelled") -> None:
        """Cancel the turn, now or as soon as the engine has it. The first call wins."""
        if self._stop is None:
            self._stop = (keep, reason)
            self.stopped.set()
            if self._turn is not None:
                self._turn.cancel(keep, reason)

    def started(self, turn: Cancellable) -> None:
        """The engine has the turn."""
        self._turn = turn
        self.is_told.set()
        if self._stop is not None:
            turn.cancel(*self._stop)

    def end(self) -> None:
        """Mark the turn as ended."""
        self.is_told.set()
        self.ended.set()
        self._turn = None  # breaks a reference cycle
