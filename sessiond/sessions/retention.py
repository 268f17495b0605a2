"""Frees the KV of sessions that no socket holds. Asyncio thread only.

`Attachments` maps open sockets to sessions, `KeepAliveDeadlines` holds the deadlines; `Retention`
acts on both.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import assert_never

from engine.errors import EngineUnavailableError
from engine.ids import SessionId
from engine.ipc.client import ContextCommand, EngineClient
from engine.ipc.messages import (
    CloseContext,
    HintContext,
    ParkContext,
    ReleaseContext,
    TruncateContext,
)
from sessiond.domain import AttachmentId
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.live_session import LifecycleEvent, LiveSession, after, is_free
from sessiond.store.records import Priority, TurnRecord

_FEW = 64
_PRIORITIES: Mapping[Priority, int] = MappingProxyType({"low": 0, "normal": 1, "high": 2})


class KeepAliveDeadlines:
    """One deadline per session, in seconds, in a heap."""

    def __init__(self) -> None:
        self._until: dict[SessionId, float] = {}
        self._heap: list[tuple[float, SessionId]] = []  # includes replaced deadlines

    def __len__(self) -> int:
        return len(self._until)

    @property
    def noted_count(self) -> int:
        """Heap entries, replaced ones included: at most a few times the deadlines."""
        return len(self._heap)

    def keep_alive(self, session: SessionId, until_s: float) -> None:
        """Set the session's deadline, replacing an earlier one."""
        self._until[session] = until_s
        heappush(self._heap, (until_s, session))
        if len(self._heap) > 2 * len(self._until) + _FEW:
            self._heap = [(until_s, session) for session, until_s in self._until.items()]
            heapify(self._heap)

    def drop(self, session: SessionId) -> None:
        """Remove the session's deadline."""
        self._until.pop(session, None)

    def take_due(self, now_s: float) -> list[SessionId]:
        """Pop the sessions whose deadline has passed, in order of deadline."""
        due = []
        while self._heap and self._heap[0][0] <= now_s:
            until_s, session = heappop(self._heap)
            if self._until.get(session) == until_s:
                del self._until[session]
                due.append(session)
        return due


class Attachments:
    """Sockets by session and sessions by socket."""

    def __init__(self) -> None:
        self._sessions: dict[AttachmentId, set[SessionId]] = {}
        self._sockets: defaultdict[SessionId, set[AttachmentId]] = defaultdict(set)

    def open(self, attachment: AttachmentId) -> None:
        """Add a socket."""
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


class Retention:
    """Frees KV, through `release`, `park` or `forget` only.

    `on_released` is called each time, to end background work on the session's KV.
    """

    def __init__(
        self,
        *,
        engine: EngineClient,
        sessions: LiveSessions,
        limits: ServiceLimits,
        ticks: Callable[[], float],
        on_released: Callable[[SessionId], None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._limits = limits
        self._ticks = ticks
        self._on_released = on_released
        self._attachments = Attachments()
        self._deadlines = KeepAliveDeadlines()
        self._cold: OrderedDict[SessionId, None] = OrderedDict()  # longest cold first
        self._dead: list[LiveSession] = []  # volatile sessions that have ended

    @property
    def cold_count(self) -> int:
        """Sessions without KV whose ids the engine still knows."""
        return len(self._cold)

    def attach(self, attachment: AttachmentId) -> None:
        """Add a socket."""
        self._attachments.open(attachment)

    def join(self, attachment: AttachmentId | None, live: LiveSession) -> None:
        """Let a socket hold the session; None: a request uses it for a while."""
        self._cold.pop(live.id, None)
        if attachment is not None:
            self._attachments.join(attachment, live.id)
        if self._attachments.is_held(live.id):
            self._deadlines.drop(live.id)
        else:
            self._hold(live, self._hold_s(live))

    def leave(self, attachment: AttachmentId) -> list[LiveSession]:
        """Remove a socket; returns the sessions that no socket holds any more."""
        freed = (self._sessions.get(session) for session in self._attachments.leave(attachment))
        return [live for live in freed if live is not None]

    def keep_alive(self, live: LiveSession, seconds: float) -> None:
        """Keep an unattached session's KV for `seconds` from now."""
        if not self._attachments.is_held(live.id):
            self._hold(live, seconds)

    def settle(self, live: LiveSession, attachment: AttachmentId | None) -> None:
        """Apply retention after a request or a socket's turn has ended.

        An attachment that has left meanwhile holds nothing.
        """
        if live.volatile and not self._attachments.is_held(live.id):
            self._die(live)
        elif attachment is None:
            self.keep_alive(live, self._hold_s(live))
        elif not self._attachments.is_held(live.id):
            self._detach(live)

    def _detach(self, live: LiveSession) -> None:
        """Apply the session's retention after its last socket has left."""
        if live.hints.retention == "hold":
            self._hold(live, self._hold_s(live))
            self.hint(live)  # the TTL starts now
        else:
            self._retire(live)

    def _retire(self, live: LiveSession) -> None:
        """Free or park the KV of a session that no socket or deadline holds."""
        if live.volatile:
            self._die(live)
            return
        match live.hints.retention:
            case "release" | "hold":
                self.release(live)
            case "park":
                self.park(live)
            case _:
                assert_never(live.hints.retention)

    def _die(self, live: LiveSession) -> None:
        """End a volatile session."""
        if not live.turn_lock.is_locked:  # else the lock holder settles it
            self.forget(live)
            self._dead.append(live)

    def take_abandoned(self) -> list[LiveSession]:
        """Pop the volatile sessions that have ended; the caller securely deletes their KV."""
        dead, self._dead = self._dead, []
        return dead

    def _hold_s(self, live: LiveSession) -> float:
        """Seconds that KV outlives the last socket, or the last request without one."""
        if live.hints.retention == "hold" and live.hints.ttl_s is not None:
            return live.hints.ttl_s
        return self._limits.http_hold_s

    def hint(self, live: LiveSession) -> None:
        """Send the client's hints about the session to the engine."""
        if live.is_resident(self._engine.epoch):
            self._send(live, hint_of(live))

    def release(self, live: LiveSession) -> None:
        """Free all KV of a session whose turn lock is free; the engine keeps its ids for now."""
        self._free(live, ReleaseContext(session=live.id))

    def release_early(self, live: LiveSession) -> None:
        """Free the KV of an unheld session whose turn is being cancelled.

        The engine frees it right after the turn, before the turn's end is stored; after that
        `settle` sends the command again.
        """
        keeps = live.hints.retention == "hold" and not live.volatile
        if keeps or not live.is_resident(self._engine.epoch):
            return
        parks = live.hints.retention == "park" and not live.volatile
        self._send(live, ParkContext(session=live.id) if parks else ReleaseContext(session=live.id))

    def park(self, live: LiveSession) -> None:
        """As `release`, but the KV is moved to the tiers below the device first."""
        self._free(live, ParkContext(session=live.id))

    def _free(self, live: LiveSession, command: ContextCommand) -> None:
        if not is_free(live.state):
            return  # the lock holder settles it
        self._deadlines.drop(live.id)
        self._on_released(live.id)
        if live.is_resident(self._engine.epoch):
            self._send(live, command)
        live.state = after(live.state, LifecycleEvent.RELEASE)
        self._cold[live.id] = None
        while len(self._cold) > self._limits.max_cold_contexts:
            session, _ = self._cold.popitem(last=False)
            longest_cold = self._sessions.get(session)
            if longest_cold is not None:
                self.forget(longest_cold)

    def forget(self, live: LiveSession) -> None:
        """Free all KV and drop the session from the engine."""
        self._cold.pop(live.id, None)
        self._deadlines.drop(live.id)
        self._attachments.forget(live.id)
        self.unplace(live)
        self._sessions.remove(live)

    def unplace(self, live: LiveSession) -> None:
        """Close the session's context in the engine, which ends a running turn."""
        self._on_released(live.id)
        if live.is_resident(self._engine.epoch):
            self._send(live, CloseContext(session=live.id))
        live.residency = None

    def cut(self, live: LiveSession, turn: TurnRecord | None) -> None:
        """Free the KV after the context of `turn`; None: all of it."""
        residency = live.residency
        if (
            turn is None
            or residency is None
            or (residency.prompt_id, residency.view) != (turn.prompt.id, None)
        ):
            self.unplace(live)
        elif live.is_resident(self._engine.epoch):
            tokens = turn.context_tokens or 0
            self._send(live, TruncateContext(session=live.id, length=tokens))
            if live.residency is not None:
                live.residency = replace(residency, tip_id=turn.id, tokens=tokens)

    def reap(self) -> None:
        """Release or park the sessions whose deadline has passed."""
        for session in self._deadlines.take_due(self._ticks()):
            live = self._sessions.get(session)
            if live is not None:
                self._retire(live)

    def _hold(self, live: LiveSession, seconds: float) -> None:
        self._deadlines.keep_alive(live.id, self._ticks() + seconds)

    def _send(self, live: LiveSession, command: ContextCommand) -> None:
        try:
            self._engine.send(command)
        except EngineUnavailableError:
            live.residency = None  # the engine's memory is lost with it


def hint_of(live: LiveSession) -> HintContext:
    """The client's hints about a session as an engine command."""
    return HintContext(
        session=live.id, ttl_s=live.hints.ttl_s, priority=_PRIORITIES[live.hints.priority]
    )
