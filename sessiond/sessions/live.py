"""Sessions in memory: found, loaded, opened. Asyncio thread only."""

from collections.abc import Callable, Iterator
from typing import TypeGuard

from engine.ids import SessionId
from engine.ipc.client import EngineClient
from sessiond.domain import Caller
from sessiond.errors import RequestError
from sessiond.sessions.live_session import LiveSession, State
from sessiond.sessions.names import session_id_of
from sessiond.sessions.refusals import conversation_not_found
from sessiond.sessions.request_form import unpack_policy
from sessiond.store.context_layout import ContextLayout
from sessiond.store.records import SessionRecord, TurnRecord
from sessiond.store.store import Store
from sessiond.store.volatile import is_volatile, volatile_prefix

OWN_PREFIX = "conv"


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
    """The sessions in memory, by id. Each belongs to the model that the engine serves."""

    def __init__(
        self,
        *,
        store: Store,
        engine: EngineClient,
        clock: Callable[[], float],
        dead_by: Callable[[], float],
        new_id: Callable[[str], str],
    ) -> None:
        self._store = store
        self._engine = engine
        self._clock = clock
        self._dead_by = dead_by
        self._new_id = new_id
        self._sessions: dict[SessionId, LiveSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(tuple(self._sessions.values()))

    def add_new(self, caller: Caller, prefix: str, *, volatile: bool) -> LiveSession:
        """Add an empty session; its first turn stores it."""
        live = LiveSession(
            id=SessionId(self._new_id(volatile_prefix(prefix) if volatile else prefix)),
            user_id=caller.user_id,
            salt=caller.salt,
            prompt=None,
            tip_id=None,
            tokens=0,
            awaits_reply=False,
            state=State.NEW,
            stored=False,
        )
        self._sessions[live.id] = live
        return live

    def add_fork(
        self, base: LiveSession, turn: TurnRecord | None, prefix: str = OWN_PREFIX
    ) -> LiveSession:
        """Add a session that starts with the context after a turn; it is not stored yet.

        None: with the system prefix alone, as `base` has no finished turn.
        """
        prompt = turn.prompt if turn else base.prompt
        live = LiveSession(
            id=SessionId(self._new_id(base.prefixed(prefix))),
            user_id=base.user_id,
            salt=base.salt,
            prompt=prompt,
            tip_id=turn.id if turn else None,
            tokens=turn.context_tokens or 0 if turn else base.tokens,
            awaits_reply=turn is not None and turn.awaits_reply,
            state=State.RELEASED if turn else State.NEW,
            stored=False,
            base_session_id=base.id,
            policy=base.policy,
            hints=base.hints,
            digest=turn.digest if turn else None,
        )
        self._sessions[live.id] = live
        return live

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

    async def open(
        self, caller: Caller, id_or_name: str, *, even_if_busy: bool = False
    ) -> LiveSession:
        """Load an open session of the caller; this replica owns it afterwards.

        Raises:
            RequestError: there is none, or another replica runs a turn in it (unless
                `even_if_busy`).
        """
        own_id = session_id_of(caller.user_id, id_or_name)
        live = await self.load(caller, own_id, even_if_busy=even_if_busy)
        if live is None:
            raise conversation_not_found(id_or_name)
        return live

    async def load(
        self, caller: Caller, session_id: str, *, even_if_busy: bool = False
    ) -> LiveSession | None:
        """Load a stored, open session of the caller and own it; None when there is none.

        The session is in memory on return, as no await follows the lookup. `even_if_busy`: take
        ownership from a replica that runs a turn in it; that turn is aborted at its commit.

        Raises:
            RequestError: its token ids are those of another model.
            SessionElsewhereError: another replica runs a turn in it.
        """
        if is_volatile(session_id):  # other replicas have no access to it
            return self.find(caller.user_id, session_id)
        record = await self._store.find_session(caller.user_id, session_id)
        if _is_open(record) and record.owner != self._store.replica_id:
            self._check_model(record)
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
        self._check_model(record)
        live = self.find(caller.user_id, session_id)
        if live is None:
            live = _from_record(record, caller.salt)
            self._sessions[live.id] = live
        elif live.epoch < record.epoch:
            live.moved(record)
        return live

    def _check_model(self, record: SessionRecord) -> None:
        info = self._engine.info
        if (record.model, record.vocab_size) != (info.model, info.vocab_size):
            raise RequestError(
                "model_not_found",
                f"the conversation was tokenised for {record.model!r} "
                f"(vocabulary of {record.vocab_size}), which is not served now",
                param="model",
            )

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
        state=State.NEW if record.tip_id is None else State.RELEASED,
        stored=True,
        epoch=record.epoch,
        policy=unpack_policy(record.context_policy),
        hints=record.hints,
        digest=record.digest,
    )
