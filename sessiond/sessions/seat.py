"""Who may change a session: one holder, then those that wait, first in, first out."""

import asyncio
from collections import deque

from sessiond.errors import RequestError
from sessiond.facts import AttachmentId


class Claim:
    """A place in one session's queue. `origin` is the socket and lane that it came from."""

    def __init__(self, origin: tuple[AttachmentId, str | None] | None) -> None:
        self.origin = origin
        self._settled = asyncio.Event()
        self._refusal: RequestError | None = None

    async def granted(self) -> None:
        """Wait until the session may be changed.

        Raises:
            RequestError: it won't be: the session was closed meanwhile.
        """
        await self._settled.wait()
        if self._refusal is not None:
            raise self._refusal

    def grant(self) -> None:
        """The session is the claim's. Only the seat calls this."""
        self._settled.set()

    def refuse(self, error: RequestError) -> None:
        """The session won't be the claim's, whoever waits for that."""
        self._refusal = error
        self._settled.set()


class Seat:
    """One session's queue of claims."""

    def __init__(self) -> None:
        self._holder: Claim | None = None
        self._waiting: deque[Claim] = deque()

    @property
    def is_taken(self) -> bool:
        """Whether someone holds the session."""
        return self._holder is not None

    def try_take(self, claim: Claim) -> bool:
        """Hold the session at once, or wait in line behind claims of the same origin.

        False, and no place: others hold it.
        """
        if self._holder is None:
            self._holder = claim
            claim.grant()
            return True
        if claim.origin is None or claim.origin != self._holder.origin:
            return False
        self._waiting.append(claim)
        return True

    def take_or_wait(self, claim: Claim) -> None:
        """Hold the session, at once or behind whoever is in line, wherever they came from."""
        if self._holder is None:
            self._holder = claim
            claim.grant()
        else:
            self._waiting.append(claim)

    def refuse_all(self, error: RequestError) -> None:
        """Those that wait won't get the session."""
        for waiting in self._waiting:
            waiting.refuse(error)
        self._waiting.clear()

    def holds(self, claim: Claim) -> bool:
        """Whether the session is the claim's."""
        return claim is self._holder

    def leave(self, claim: Claim) -> None:
        """Give up the session, which the next in line then holds, or the place in line."""
        if claim is self._holder:
            self._holder = self._waiting.popleft() if self._waiting else None
            if self._holder is not None:
                self._holder.grant()
        elif claim in self._waiting:
            self._waiting.remove(claim)
