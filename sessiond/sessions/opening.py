"""Opens sessions without a turn; once per name or idempotency key."""

from functools import partial

from engine.ids import SessionId
from sessiond.errors import RequestError
from sessiond.facts import Caller, ConversationView, InputItem
from sessiond.sessions.conversations import Conversations
from sessiond.sessions.names import session_id_of
from sessiond.sessions.parts import Parts
from sessiond.sessions.planning import Planner
from sessiond.sessions.quotas import Quotas
from sessiond.sessions.repeats import Repeats, digest_of
from sessiond.store.errors import StoreError
from sessiond.store.records import NewSession


class Openings:
    """Tracks the sessions being opened under idempotency keys."""

    def __init__(
        self,
        parts: Parts,
        *,
        planner: Planner,
        conversations: Conversations,
        repeats: Repeats,
        quotas: Quotas,
    ) -> None:
        self._engine = parts.engine
        self._store = parts.store
        self._planner = planner
        self._conversations = conversations
        self._repeats = repeats
        self._quotas = quotas
        self._clock = parts.clock
        self._new_id = parts.new_id
        self._begun: set[str] = set()

    async def create(
        self,
        caller: Caller,
        items: tuple[InputItem, ...],
        metadata: dict[str, str],
        *,
        name: str | None = None,
        key: str | None = None,
    ) -> ConversationView:
        """Open a session, with items in its context; by a name that is in use: the one that is.

        Raises:
            RequestError: its user has as many as may be open, a session of that name was deleted
                not long ago, or the idempotency key came with another request.
        """
        if key is not None:
            return await self._create_once(caller, items, metadata, name, key)
        if name is None:
            return await self._create(caller, SessionId(self._new_id("conv")), items, metadata)
        return await self._create_named(caller, items, metadata, name)

    async def _create_once(
        self,
        caller: Caller,
        items: tuple[InputItem, ...],
        metadata: dict[str, str],
        name: str | None,
        key: str,
    ) -> ConversationView:
        digest = digest_of("conversation", items, metadata, name)
        known = await self._repeats.find(caller, key, digest, partial(self._is_open, caller))
        if known in self._begun:
            raise _being_worked_on()
        if known is not None:
            return await self._conversations.get(caller, known)
        new_id = self._new_id("conv") if name is None else session_id_of(caller.user_id, name)
        self._begun.add(new_id)  # before the key stands for it: else it could look like a dead one
        try:
            return await self._claim_and_create(caller, items, metadata, name, key, digest, new_id)
        finally:
            self._begun.discard(new_id)

    async def _claim_and_create(  # noqa: PLR0913, PLR0917 -- the request, and what stands for it
        self,
        caller: Caller,
        items: tuple[InputItem, ...],
        metadata: dict[str, str],
        name: str | None,
        key: str,
        digest: str,
        new_id: str,
    ) -> ConversationView:
        if not await self._repeats.claim(caller, key, digest, new_id):
            raise _being_worked_on()
        try:
            if name is not None:
                return await self._create_named(caller, items, metadata, name)
            return await self._create(caller, SessionId(new_id), items, metadata)
        except BaseException:
            await self._repeats.release(caller, key, new_id)
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
    ) -> ConversationView:
        own_id = SessionId(session_id_of(caller.user_id, name))
        try:
            found = await self._named(caller, own_id)
            return found or await self._create(caller, own_id, items, metadata)
        except StoreError:
            found = await self._named(caller, own_id)  # a concurrent request may have created it
            if found is None:
                raise
            return found

    async def _named(self, caller: Caller, own_id: SessionId) -> ConversationView | None:
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
    ) -> ConversationView:
        now = self._clock()
        prompt = await self._planner.new_front(None, None)
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
        return ConversationView(id=session_id, created_at=now, metadata=metadata)


def _being_worked_on() -> RequestError:
    return RequestError(
        "idempotency_conflict",
        "a request with this idempotency key is in progress: try again",
        param="idempotency_key",
        retry_after_s=1,
    )
