"""A request that holds its place in a session, from receipt to the turn's end."""

import asyncio
from typing import Literal, Protocol

from sessiond.facts import AttachmentId, Caller, TurnRequest
from sessiond.sessions.live import LiveSession
from sessiond.sessions.seat import Claim

CancelReason = Literal["cancelled", "disconnected"]
StopReason = Literal["cancelled", "disconnected", "deadline", "queue_timeout"]


class Cancellable(Protocol):
    """A turn that the engine works on."""

    def cancel(self, keep: bool, reason: CancelReason = "cancelled") -> None:
        """Stop it; twice, or after the end: nothing happens."""
        ...


class BoundTurn:
    """Ends in `SessionService.run` or `.drop`; `ended` tells when nothing of it is left to do.

    `stopped` tells that it was cancelled, maybe before the engine had it.
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
        self.key: str | None = None  # the idempotency key that stands for it
        self.ended = asyncio.Event()
        self.stopped = asyncio.Event()
        self.is_told = asyncio.Event()  # the turn has begun to be told, or never will be
        self._turn: Cancellable | None = None
        self._stop: tuple[bool, CancelReason] | None = None

    @property
    def session_id(self) -> str:
        """The session that the turn will be part of."""
        return self.live.id

    @property
    def owner(self) -> str | None:
        """The user who waits for it; None: it is in the background."""
        return None if self.request.background else self.caller.user_id

    def stop(self, keep: bool, reason: CancelReason = "cancelled") -> None:
        """Cancel the turn, now or as soon as the engine has it. The first word holds."""
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
        """Nothing of the turn is left to do."""
        self.is_told.set()
        self.ended.set()
        self._turn = None  # which refers to this: both wait for no collector of garbage
