"""One session in memory: its state, its turn lock, its place in the engine. Asyncio thread only.

The transitions of a session's state are a table.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from engine.ids import SessionId
from sessiond.domain import AttachmentId, ContextChanged, PolicyChoice, SummaryOverdue
from sessiond.errors import RequestError
from sessiond.sessions.refusals import conversation_not_found
from sessiond.sessions.request_form import unpack_policy
from sessiond.store.context_layout import ContextLayout, VisibleSpans
from sessiond.store.records import FIRST_EPOCH, Prompt, SessionHints, SessionRecord
from sessiond.store.volatile import is_volatile, volatile_prefix


class State(Enum):
    """What may be done with a session. What clients see also depends on blocks: see `Inspector`."""

    NEW = "new"  # no finished turn
    HELD = "held"  # a socket or a request holds its KV, if the engine has any
    RUNNING = "running"  # a turn, a reset or added items hold its turn lock
    RELEASED = "released"  # its KV was freed or moved to the tiers below the device
    CLOSED = "closed"


class LifecycleEvent(Enum):
    """Event of a session."""

    LOCK = "lock"  # its turn lock was taken
    ADVANCE = "advance"  # its tip has moved to a finished turn
    UNDO = "undo"  # its context is unchanged
    UNDO_FIRST = "undo_first"  # its context is unchanged and has no finished turn yet
    PLACE = "place"  # its context was sent to the engine
    RELEASE = "release"
    RESET = "reset"
    CLOSE = "close"


NEXT: dict[tuple[State, LifecycleEvent], State] = {
    (State.NEW, LifecycleEvent.LOCK): State.RUNNING,
    (State.HELD, LifecycleEvent.LOCK): State.RUNNING,
    (State.RELEASED, LifecycleEvent.LOCK): State.RUNNING,
    (State.RUNNING, LifecycleEvent.ADVANCE): State.HELD,
    (State.RUNNING, LifecycleEvent.UNDO): State.HELD,
    (State.RUNNING, LifecycleEvent.UNDO_FIRST): State.NEW,
    (State.RUNNING, LifecycleEvent.RESET): State.NEW,
    (State.RUNNING, LifecycleEvent.CLOSE): State.CLOSED,
    (State.RELEASED, LifecycleEvent.PLACE): State.HELD,
    (State.NEW, LifecycleEvent.RELEASE): State.NEW,
    (State.HELD, LifecycleEvent.RELEASE): State.RELEASED,
    (State.RELEASED, LifecycleEvent.RELEASE): State.RELEASED,
}


class TransitionError(Exception):
    """A bug: the state of the session does not allow the event."""

    def __init__(self, state: State, event: LifecycleEvent) -> None:
        super().__init__(f"event {event.value} is not allowed in state {state.value}")
        self.state = state
        self.event = event


def after(state: State, event: LifecycleEvent) -> State:
    """The state after the event.

    Raises:
        TransitionError: the table has no such transition.
    """
    following = NEXT.get((state, event))
    if following is None:
        raise TransitionError(state, event)
    return following


def is_free(state: State) -> bool:
    """Whether a turn may begin."""
    match state:
        case State.NEW | State.HELD | State.RELEASED:
            return True
        case State.RUNNING | State.CLOSED:
            return False
        case _:
            assert_never(state)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResidency:
    """The context that the engine holds for a session, and the epoch of the engine.

    Without a tip the context is empty: the first turn sends the system prefix. `view`: the visible
    spans if they differ from those after the tip, as after an aborted turn. `tokens` counts visible
    tokens.
    """

    epoch: int
    prompt_id: str
    tip_id: str | None
    tokens: int
    view: VisibleSpans | None = None


@dataclass(slots=True, kw_only=True)
class LiveSession:
    """State of a session in memory. `tokens`: visible tokens, the system prefix included.

    `prompt` None: the system prefix is not encoded yet. `layout` None: not read yet. Not `stored`:
    the first turn stores the session. `base_session_id`: of a fork, the session that ran the turn
    it was forked at. `policy` None: that of the user, or the server. `epoch`: ownership epoch of
    this replica, verified by each commit. `stale`: the row must be read again. `digest`: of all
    messages up to the tip, if known. `overdue_beyond`: the highest threshold that its client knows
    the context to have passed without a summary.
    """

    id: SessionId
    user_id: str
    salt: bytes
    prompt: Prompt | None
    tip_id: str | None
    tokens: int
    awaits_reply: bool
    state: State
    stored: bool
    epoch: int = FIRST_EPOCH
    base_session_id: SessionId | None = None
    stale: bool = False
    layout: ContextLayout | None = None
    policy: PolicyChoice | None = None
    hints: SessionHints = field(default_factory=SessionHints)
    digest: str | None = None
    residency: EngineResidency | None = None
    overdue_beyond: int = 0
    turn_lock: TurnLock = field(default_factory=TurnLock)

    @property
    def volatile(self) -> bool:
        """Whether the session is in memory only and ends with the last socket that holds it."""
        return is_volatile(self.id)

    def is_news(self, change: ContextChanged | SummaryOverdue) -> bool:
        """Whether the client has not been told so; it will be now."""
        if isinstance(change, ContextChanged):
            self.overdue_beyond = 0
            return True
        is_news = change.threshold > self.overdue_beyond
        self.overdue_beyond = max(change.threshold, self.overdue_beyond)
        return is_news

    def prefixed(self, prefix: str) -> str:
        """The prefix for ids of the session and its turns."""
        return volatile_prefix(prefix) if self.volatile else prefix

    def ticket(self, ticket: LockTicket) -> bool:
        """Take the turn lock or queue for it; False: neither is possible."""
        was_free = not self.turn_lock.is_locked
        taken = self.turn_lock.try_acquire(ticket)
        if taken and was_free:
            self.state = after(self.state, LifecycleEvent.LOCK)
        return taken

    def lock_to_close(self, ticket: LockTicket) -> None:
        """Queue for the turn lock as its last holder; refuse waiting claims."""
        self.turn_lock.refuse_all(conversation_not_found(self.id))
        if not self.turn_lock.is_locked:
            self.state = after(self.state, LifecycleEvent.LOCK)
        self.turn_lock.acquire_or_wait(ticket)

    def leave(self, ticket: LockTicket, event: LifecycleEvent | None = None) -> None:
        """Release the turn lock to the next claim, or leave its queue.

        `event`: the session's transition on release; None: unchanged.
        """
        if not self.turn_lock.holds(ticket):
            self.turn_lock.leave(ticket)
            return
        if event is None:
            event = LifecycleEvent.UNDO_FIRST if self.tip_id is None else LifecycleEvent.UNDO
        self.state = after(self.state, event)
        if self.state is State.CLOSED:
            self.turn_lock.refuse_all(conversation_not_found(self.id))
        self.turn_lock.leave(ticket)
        if self.turn_lock.is_locked:
            self.state = after(self.state, LifecycleEvent.LOCK)

    def is_resident(self, epoch: int) -> bool:
        """Whether the engine of this epoch holds a context for the session."""
        return self.residency is not None and self.residency.epoch == epoch

    def moved(self, record: SessionRecord) -> None:
        """Mark the session as possibly changed by another replica."""
        if self.turn_lock.is_locked:
            self.epoch, self.stale = record.epoch, True  # the next lock holder reads the row
        else:
            self.take(record)

    def take(self, record: SessionRecord) -> None:
        """Update the session from its row."""
        self.epoch = record.epoch
        self.prompt = record.prompt
        self.tip_id = record.tip_id
        self.tokens = record.context_tokens
        self.awaits_reply = record.awaits_reply
        self.digest = record.digest
        self.policy = unpack_policy(record.context_policy)
        self.hints = record.hints
        self.layout = None
        self.stale = False
