"""Until when sessions that no socket holds keep their KV. Pure; time is passed in."""

from engine.ids import SessionId


class Holds:
    """One deadline per session, in the clock's seconds."""

    def __init__(self) -> None:
        self._until: dict[SessionId, float] = {}

    def hold(self, session: SessionId, until_s: float) -> None:
        """Keep the session's KV until then, whatever was said before."""
        self._until[session] = until_s

    def drop(self, session: SessionId) -> None:
        """The session needs no deadline."""
        self._until.pop(session, None)

    def take_due(self, now_s: float) -> list[SessionId]:
        """Sessions whose time is over; each is told once."""
        due = [session for session, until_s in self._until.items() if until_s <= now_s]
        for session in due:
            del self._until[session]
        return due
