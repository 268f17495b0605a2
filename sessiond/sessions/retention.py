"""Gives back the KV of sessions that nobody holds. Asyncio thread only."""

from collections import OrderedDict

from engine.client import ContextCommand
from engine.errors import EngineUnavailableError
from engine.ids import SessionId
from engine.messages import CloseContext, ReleaseContext
from sessiond.facts import AttachmentId
from sessiond.sessions.attachments import Attachments
from sessiond.sessions.holds import Holds
from sessiond.sessions.lifecycle import Event, after, is_free
from sessiond.sessions.live import LiveSession
from sessiond.sessions.parts import Parts


class Retention:
    """Every way on which KV is given back ends in `release` or `forget`."""

    def __init__(self, parts: Parts) -> None:
        self._engine = parts.engine
        self._sessions = parts.sessions
        self._limits = parts.limits
        self._clock = parts.clock
        self._attachments = Attachments()
        self._holds = Holds()
        self._cold: OrderedDict[SessionId, None] = OrderedDict()  # the longest cold first

    def attach(self, attachment: AttachmentId) -> None:
        """A socket came."""
        self._attachments.open(attachment)

    def join(self, attachment: AttachmentId | None, live: LiveSession) -> None:
        """Someone works with the session: a socket, which holds it, or a request for a while."""
        self._cold.pop(live.id, None)
        if attachment is not None:
            self._attachments.join(attachment, live.id)
        if self._attachments.is_held(live.id):
            self._holds.drop(live.id)
        else:
            self._hold(live, self._limits.http_hold_s)

    def leave(self, attachment: AttachmentId) -> list[LiveSession]:
        """A socket left; returns the sessions that no socket holds any more."""
        freed = (self._sessions.get(session) for session in self._attachments.leave(attachment))
        return [live for live in freed if live is not None]

    def hold(self, live: LiveSession, seconds: float) -> None:
        """Keep an unattached session's KV for so long from now."""
        if not self._attachments.is_held(live.id):
            self._hold(live, seconds)

    def settle(self, live: LiveSession, attachment: AttachmentId | None) -> None:
        """Someone is done with the session; a socket that has left meanwhile holds nothing."""
        if attachment is None:
            self.hold(live, self._limits.http_hold_s)
        elif not self._attachments.is_held(live.id):
            self.release(live)

    def release(self, live: LiveSession) -> None:
        """Give back all KV of a session that nobody changes; its ids stay known for a while."""
        if not is_free(live.state):
            return  # whoever changes it settles it
        self._holds.drop(live.id)
        if live.is_placed(self._engine.epoch):
            self._send(live, ReleaseContext(session=live.id))
        live.state = after(live.state, Event.RELEASE)
        self._cold[live.id] = None
        while len(self._cold) > self._limits.max_cold_contexts:
            session, _ = self._cold.popitem(last=False)
            longest_cold = self._sessions.get(session)
            if longest_cold is not None:
                self.forget(longest_cold)

    def forget(self, live: LiveSession) -> None:
        """Give back all KV and know nothing of the session any more."""
        self._cold.pop(live.id, None)
        self._holds.drop(live.id)
        self._attachments.forget(live.id)
        self.unplace(live)
        self._sessions.remove(live)

    def unplace(self, live: LiveSession) -> None:
        """Let the engine forget the session's context, and end its turn if one runs."""
        if live.is_placed(self._engine.epoch):
            self._send(live, CloseContext(session=live.id))
        live.placement = None

    def reap(self) -> None:
        """Release the sessions whose time is over."""
        for session in self._holds.take_due(self._clock()):
            live = self._sessions.get(session)
            if live is not None:
                self.release(live)

    def _hold(self, live: LiveSession, seconds: float) -> None:
        self._holds.hold(live.id, self._clock() + seconds)

    def _send(self, live: LiveSession, command: ContextCommand) -> None:
        try:
            self._engine.send(command)
        except EngineUnavailableError:
            live.placement = None  # with the engine its memory is gone
