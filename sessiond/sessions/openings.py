"""Sessions opened without a turn: new ones, named ones, forks. Asyncio thread only."""

from collections.abc import Callable
from functools import partial

from engine.ids import SessionId
from engine.ipc.client import EngineClient
from sessiond.domain import Caller, ConversationResource, InputItem, SessionView
from sessiond.errors import RequestError
from sessiond.sessions.conversations import Conversations
from sessiond.sessions.engine_sync import EngineSync
from sessiond.sessions.idempotency import IdempotentRequests, digest_of
from sessiond.sessions.inspection import Inspector
from sessiond.sessions.live import LiveSessions, SessionElsewhereError
from sessiond.sessions.live_session import LiveSession
from sessiond.sessions.names import session_id_of
from sessiond.sessions.plan import Planner
from sessiond.sessions.quotas import Quotas
from sessiond.sessions.refusals import conversation_not_found, response_not_found
from sessiond.sessions.request_form import pack_policy
from sessiond.sessions.retention import Retention
from sessiond.store.context_layout import Fidelity
from sessiond.store.errors import BaseGoneError, StoreError
from sessiond.store.records import NewSession, TurnRecord
from sessiond.store.store import Store


class Openings:
    """Opens sessions: new ones, named ones, forks. Tracks those opened under idempotency keys."""

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        engine: EngineClient,
        store: Store,
        sessions: LiveSessions,
        planner: Planner,
        engine_sync: EngineSync,
        conversations: Conversations,
        inspector: Inspector,
        retention: Retention,
        idempotency: IdempotentRequests,
        quotas: Quotas,
        clock: Callable[[], float],
        new_id: Callable[[str], str],
    ) -> None:
        self._engine = engine
        self._store = store
        self._sessions = sessions
        self._planner = planner
        self._engine_sync = engine_sync
        self._conversations = conversations
        self._inspector = inspector
        self._retention = retention
        self._idempotency = idempotency
        self._quotas = quotas
        self._clock = clock
        self._new_id = new_id
        self._begun: set[str] = set()

    async def create(
        self,
        caller: Caller,
        items: tuple[InputItem, ...],
        metadata: dict[str, str],
        *,
        name: str | None = None,
        key: str | None = None,
    ) -> ConversationResource:
        """Open a session with items in its context; the next turn computes them.

        An open session of that name is returned unchanged.

        Raises:
            RequestError: the user's quota of open sessions is used up, a session of that name was
                deleted recently, or the idempotency key was used for another request.
        """
        if key is not None:
            return await self._create_once(caller, items, metadata, name, key)
        if name is None:
            return await self._create(caller, SessionId(self._new_id("conv")), items, metadata)
        return await self._create_named(caller, items, metadata, name)

    async def fork(
        self, caller: Caller, session_id: str, response_id: str | None = None
    ) -> SessionView:
        """Create a stored session that continues from a response; None: from the last one.

        Blocks are shared if the engine has them. No turn lock is taken: the parent may be
        generating, and is not changed.

        Raises:
            RequestError: there is no such session or response, or the user's quota of open sessions
                is used up.
        """
        base = await self._base(caller, session_id)
        turn = await self._turn(base, response_id)
        live = self._sessions.add_fork(base, turn)
        try:
            row = self._row(live, turn.usage.fidelity if turn else "exact")
            await self._quotas.create_session(caller, row, None, base.id)
        except BaseGoneError as error:
            self._retention.forget(live)
            if response_id is None:
                raise conversation_not_found(session_id) from error
            raise response_not_found(response_id, param="response_id") from error
        except BaseException:
            self._retention.forget(live)
            raise
        live.stored = True
        self._retention.join(None, live)
        await self._engine_sync.place_fork(live)
        return await self._inspector.session(caller, live.id)

    async def _create_once(
        self,
        caller: Caller,
        items: tuple[InputItem, ...],
        metadata: dict[str, str],
        name: str | None,
        key: str,
    ) -> ConversationResource:
        digest = digest_of("conversation", items, metadata, name)
        known = await self._idempotency.find(caller, key, digest, partial(self._is_open, caller))
        if known in self._begun:
            raise _in_progress()
        if known is not None:
            return await self._conversations.get(caller, known)
        new_id = self._new_id("conv") if name is None else session_id_of(caller.user_id, name)
        self._begun.add(new_id)  # before the claim: else a concurrent request would find it dead
        try:
            return await self._claim_and_create(caller, items, metadata, name, key, digest, new_id)
        finally:
            self._begun.discard(new_id)

    async def _claim_and_create(  # noqa: PLR0913, PLR0917 -- the request and its key, private
        self,
        caller: Caller,
        items: tuple[InputItem, ...],
        metadata: dict[str, str],
        name: str | None,
        key: str,
        digest: str,
        new_id: str,
    ) -> ConversationResource:
        if not await self._idempotency.claim(caller, key, digest, new_id):
            raise _in_progress()
        try:
            if name is not None:
                return await self._create_named(caller, items, metadata, name)
            return await self._create(caller, SessionId(new_id), items, metadata)
        except BaseException:
            await self._idempotency.release(caller, key, new_id)
            raise

    async def _is_open(self, caller: Caller, session_id: str) -> bool:
        if session_id in self._begun:
            return True
        record = await self._store.find_session(caller.user_id, session_id)
        return record is not None and record.closed_at is None

    async def _create_named(
        self,
        caller: Caller,
        items: tuple[InputItem, ...],
        metadata: dict[str, str],
        name: str,
    ) -> ConversationResource:
        own_id = SessionId(session_id_of(caller.user_id, name))
        try:
            found = await self._named(caller, own_id)
            return found or await self._create(caller, own_id, items, metadata)
        except StoreError:
            found = await self._named(caller, own_id)  # a concurrent request may have created it
            if found is None:
                raise
            return found

    async def _named(self, caller: Caller, own_id: SessionId) -> ConversationResource | None:
        record = await self._store.find_session(caller.user_id, own_id)
        if record is None:
            return None
        if record.closed_at is not None:
            raise RequestError(
                "idempotency_conflict",
                "conversation id must be new (this one was deleted recently)",
                param="id",
            )
        return await self._conversations.get(caller, own_id)

    async def _create(
        self,
        caller: Caller,
        session_id: SessionId,
        items: tuple[InputItem, ...],
        metadata: dict[str, str],
    ) -> ConversationResource:
        now = self._clock()
        prompt = await self._planner.new_system_prefix(None, None)
        session = NewSession(
            id=session_id,
            user_id=caller.user_id,
            model=self._engine.info.model,
            vocab_size=self._engine.info.vocab_size,
            prompt_id=prompt.id,
            tip_id=None,
            context_tokens=len(prompt.ids),
            metadata=metadata,
            created_at=now,
        )
        await self._quotas.create_session(caller, session, prompt)
        if items:
            try:
                await self._conversations.add_items(caller, session_id, items)
            except RequestError:
                await self._conversations.close(caller, session_id)
                raise
        return ConversationResource(id=session_id, created_at=now, metadata=metadata)

    async def _base(self, caller: Caller, session_id: str) -> LiveSession:
        try:
            base = await self._sessions.open(caller, session_id)
        except SessionElsewhereError as elsewhere:
            return elsewhere.session
        self._retention.join(None, base)  # else it could be unloaded meanwhile
        await self._sessions.refresh(base)
        return base

    async def _turn(self, base: LiveSession, response_id: str | None) -> TurnRecord | None:
        wanted = response_id or base.tip_id
        if wanted is None:
            return None
        turn = await self._store.find_turn(base.user_id, wanted)
        if turn is None or not turn.is_checkpoint or not await self._is_of(turn, base):
            raise response_not_found(wanted, param="response_id")
        return turn

    async def _is_of(self, turn: TurnRecord, base: LiveSession) -> bool:
        """Whether the session ran the turn, or was forked after it."""
        if turn.session_id == base.id:
            return True
        return await self._store.is_in_context(base.user_id, turn.id, base.tip_id)

    def _row(self, live: LiveSession, fidelity: Fidelity) -> NewSession:
        if live.prompt is None:
            raise conversation_not_found(live.id)
        info = self._engine.info
        return NewSession(
            id=live.id,
            user_id=live.user_id,
            model=info.model,
            vocab_size=info.vocab_size,
            prompt_id=live.prompt.id,
            tip_id=live.tip_id,
            context_tokens=live.tokens,
            created_at=self._clock(),
            hints=live.hints,
            context_policy=pack_policy(live.policy),
            fidelity=fidelity,
        )


def _in_progress() -> RequestError:
    return RequestError(
        "idempotency_conflict",
        "a request with this idempotency key is in progress: try again",
        param="idempotency_key",
        retry_after_s=1,
    )
