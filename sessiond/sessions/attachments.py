"""Which open sockets hold which sessions. HTTP requests hold none. Pure."""

from collections import defaultdict

from engine.ids import SessionId
from sessiond.facts import AttachmentId


class Attachments:
    """Sockets by session and sessions by socket."""

    def __init__(self) -> None:
        self._sessions: dict[AttachmentId, set[SessionId]] = {}
        self._sockets: defaultdict[SessionId, set[AttachmentId]] = defaultdict(set)

    def open(self, attachment: AttachmentId) -> None:
        """A socket was opened."""
        self._sessions.setdefault(attachment, set())

    def join(self, attachment: AttachmentId, session: SessionId) -> None:
        """Let an open socket hold a session; a closed one holds nothing."""
        if attachment in self._sessions:
            self._sessions[attachment].add(session)
            self._sockets[session].add(attachment)

    def leave(self, attachment: AttachmentId) -> list[SessionId]:
        """Close a socket; returns the sessions that no socket holds any more."""
        freed = []
        for session in self._sessions.pop(attachment, ()):
            sockets = self._sockets[session]
            sockets.discard(attachment)
            if not sockets:
                del self._sockets[session]
                freed.append(session)
        return freed

    def forget(self, session: SessionId) -> None:
        """Remove a deleted session."""
        for attachment in self._sockets.pop(session, ()):
            self._sessions[attachment].discard(session)

    def is_held(self, session: SessionId) -> bool:
        """Whether a socket holds the session."""
        return session in self._sockets
