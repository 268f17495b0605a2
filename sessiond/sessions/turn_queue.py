"""Turn lock of a session: one holder and a FIFO queue."""

import asyncio
from collections import deque

from sessiond.domain import AttachmentId
from sessiond.errors import RequestError


class LockTicket:
    """A claim on one session's turn lock. `origin`: its socket and lane."""

    def __init__(self, origin: tuple[AttachmentId, str | None] | None) -> None:
        self.origin = origin
        self._settled = asyncio.Event()
        self._refusal: RequestError | None = None

    async def granted(self) -> None:
        """Wait for the turn lock.

        Raises:
            RequestError: the session was closed meanwhile.
        """
        await self._settled.wait()
        if self._refusal is not None:
            raise self._refusal

    def grant(self) -> None:
        """Grant the lock to the claim. Called by the lock only."""
        self._settled.set()

    def refuse(self, error: RequestError) -> None:
        """Refuse the claim; waiters get the error."""
        self._refusal = error
        self._settled.set()


class TurnLock:
    """The turn lock of one session."""

    def __init__(self) -> None:
        self._holder: LockTicket | None = None
        self._waiting: deque[LockTicket] = deque()

    @property
    def is_locked(self) -> bool:
        """Whether the lock is held."""
        return self._holder is not None

    def try_acquire(self, ticket: LockTicket) -> bool:
        """Take the lock at once, or queue behind claims of the same origin.

        False: claims of another origin hold it; not queued.
        """
        if self._holder is None:
            self._holder = ticket
            ticket.grant()
            return True
        if ticket.origin is None or ticket.origin != self._holder.origin:
            return False
        self._waiting.append(ticket)
        return True

    def acquire_or_wait(self, ticket: LockTicket) -> None:
        """Take the lock at once, or queue behind all claims of any origin."""
        if self._holder is None:
            self._holder = ticket
            ticket.grant()
        else:
            self._waiting.append(ticket)

    def refuse_all(self, error: RequestError) -> None:
        """Refuse all waiting claims."""
        for waiting in self._waiting:
            waiting.refuse(error)
        self._waiting.clear()

    def holds(self, ticket: LockTicket) -> bool:
        """Whether the claim holds the lock."""
        return ticket is self._holder

    def leave(self, ticket: LockTicket) -> None:
        """Release the lock to the next claim, or leave the queue."""
        if ticket is self._holder:
            self._holder = self._waiting.popleft() if self._waiting else None
            if self._holder is not None:
                self._holder.grant()
        elif ticket in self._waiting:
            self._waiting.remove(ticket)
