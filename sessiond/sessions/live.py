"""Sessions in memory. Asyncio thread only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from engine.ids import SessionId
from sessiond.domain import Caller, PolicyChoice
from sessiond.errors import RequestError
from sessiond.sessions.lifecycle import LifecycleEvent, State, after
from sessiond.sessions.refusals import conversation_not_found
from sessiond.sessions.request_form import unpack_policy
from sessiond.sessions.turn_queue import LockTicket, TurnLock
from sessiond.store.context_layout import ContextLayout, VisibleSpans
from sessiond.store.records import FIRST_EPOCH, Prompt, SessionHints, SessionRecord
from sessiond.store.store import Store
from sessiond.store.volatile import is_volatile, volatile_prefix


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
    messages up to the tip, if known.
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
    turn_lock: TurnLock = field(default_factory=TurnLock)

    @property
    def volatile(self) -> bool:
        """Whether the session is in memory only and ends with the last socket that holds it."""
        return is_volatile(self.id)

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


class SessionElsewhereError(RequestError):
    """Another replica runs a turn in the session. `session`: its row, not in `LiveSessions`."""

    def __init__(self, session: LiveSession) -> None:
        super().__init__(
            "turn_in_progress",
            f"a turn is in progress in {session.id}, on another server",
            param="conversation",
        )
        self.session = session


class LiveSessions:
    """The sessions in memory, by id."""

    def __init__(
        self, store: Store, clock: Callable[[], float], dead_by: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._dead_by = dead_by
        self._sessions: dict[SessionId, LiveSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(tuple(self._sessions.values()))

    def add(self, live: LiveSession) -> None:
        """Add a session that is not stored yet."""
        self._sessions[live.id] = live

    def remove(self, live: LiveSession) -> None:
        """Remove a session; its turn lock must be free."""
        self._sessions.pop(live.id, None)

    def get(self, session_id: str) -> LiveSession | None:
        """A session in memory, of any user."""
        return self._sessions.get(SessionId(session_id))

    def is_dead(self, session_id: str) -> bool:
        """Whether the id is that of a volatile session that has ended."""
        return is_volatile(session_id) and self.get(session_id) is None

    def find(self, user_id: str, session_id: str) -> LiveSession | None:
        """A stored session of the user that is in memory."""
        live = self.get(session_id)
        return live if live is not None and live.user_id == user_id and live.stored else None

    async def load(
        self,
        caller: Caller,
        session_id: str,
        check: Callable[[SessionRecord], None],
        *,
        even_if_busy: bool = False,
    ) -> LiveSession | None:
        """Load a stored, open session of the caller and own it; None when there is none.

        `check` may reject the row. The session is in memory on return, as no await follows the
        lookup. `even_if_busy`: take ownership from a replica that runs a turn in it; that turn is
        aborted at its commit.

        Raises:
            SessionElsewhereError: another replica runs a turn in it.
        """
        if is_volatile(session_id):  # other replicas have no access to it
            return self.find(caller.user_id, session_id)
        record = await self._store.find_session(caller.user_id, session_id)
        if _is_open(record) and record.owner != self._store.replica_id:
            check(record)
            record = await self._store.claim_session(
                caller.user_id,
                session_id,
                self._clock(),
                dead_by=self._dead_by(),
                even_if_busy=even_if_busy,
            )
        if not _is_open(record):
            return None
        if record.owner != self._store.replica_id:
            raise SessionElsewhereError(_from_record(record, caller.salt))
        check(record)
        live = self.find(caller.user_id, session_id)
        if live is None:
            live = _from_record(record, caller.salt)
            self.add(live)
        elif live.epoch < record.epoch:
            live.moved(record)
        return live

    async def reclaim(self, live: LiveSession) -> None:
        """Own a session again after another replica owned it. The caller holds the turn lock.

        Raises:
            RequestError: the session is closed.
            SessionElsewhereError: another replica runs a turn in it.
        """
        record = await self._store.claim_session(
            live.user_id, live.id, self._clock(), dead_by=self._dead_by()
        )
        if not _is_open(record):
            raise conversation_not_found(live.id)
        if record.owner != self._store.replica_id:
            raise SessionElsewhereError(_from_record(record, live.salt))
        live.take(record)

    async def refresh(self, live: LiveSession) -> None:
        """Read the row again if the session is stale.

        Raises:
            RequestError: the session was closed.
        """
        if live.stale:
            record = await self._store.find_session(live.user_id, live.id)
            if record is None or record.closed_at is not None:
                raise conversation_not_found(live.id)
            if live.stale:  # not refreshed meanwhile by another task
                live.take(record)

    async def layout(self, live: LiveSession) -> ContextLayout:
        """The context layout of a session; the caller holds its turn lock."""
        prefix_tokens = live.prompt.tokens if live.prompt else 0
        if live.tip_id is None:
            return ContextLayout(prefix_tokens=prefix_tokens)
        if live.layout is None:
            live.layout = await self._store.layout(live.user_id, prefix_tokens, live.tip_id)
        return live.layout


def _is_open(record: SessionRecord | None) -> TypeGuard[SessionRecord]:
    return record is not None and record.closed_at is None


def _from_record(record: SessionRecord, salt: bytes) -> LiveSession:
    return LiveSession(
        id=SessionId(record.id),
        user_id=record.user_id,
        salt=salt,
        prompt=record.prompt,
        tip_id=record.tip_id,
        tokens=record.context_tokens,
        awaits_reply=record.awaits_reply,
        state=State.NEW if record.tip_id is None else State.COLD,
        stored=True,
        epoch=record.epoch,
        policy=unpack_policy(record.context_policy),
        hints=record.hints,
        digest=record.digest,
    )
