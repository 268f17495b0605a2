"""Forks sessions at a response. Asyncio thread only."""

from sessiond.domain import Caller
from sessiond.sessions.bind import Binder
from sessiond.sessions.engine_sync import EngineSync
from sessiond.sessions.live import LiveSession, SessionElsewhereError
from sessiond.sessions.parts import SessionDeps
from sessiond.sessions.quotas import Quotas
from sessiond.sessions.refusals import conversation_not_found, response_not_found
from sessiond.sessions.request_form import pack_policy
from sessiond.sessions.retention import Retention
from sessiond.store.errors import BaseGoneError
from sessiond.store.records import NewSession, TurnRecord


class Forks:
    """Takes no turn lock: the parent may be generating and is not changed."""

    def __init__(
        self,
        deps: SessionDeps,
        *,
        binder: Binder,
        engine_sync: EngineSync,
        retention: Retention,
        quotas: Quotas,
    ) -> None:
        self._engine = deps.engine
        self._store = deps.store
        self._sessions = deps.sessions
        self._binder = binder
        self._engine_sync = engine_sync
        self._retention = retention
        self._quotas = quotas
        self._clock = deps.clock

    async def fork(self, caller: Caller, session_id: str, response_id: str | None) -> LiveSession:
        """Create a stored session that continues from a response; None: from the last one.

        Blocks are shared if the engine has them.

        Raises:
            RequestError: there is no such session or response, or the user's quota of open sessions
                is used up.
        """
        base = await self._base(caller, session_id)
        turn = await self._turn(base, response_id)
        live = self._binder.fork(base, turn)
        try:
            await self._quotas.create_session(caller, await self._row(live), None, base.id)
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
        return live

    async def _base(self, caller: Caller, session_id: str) -> LiveSession:
        try:
            base = await self._binder.load(caller, session_id)
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

    async def _row(self, live: LiveSession) -> NewSession:
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
            fidelity=(await self._sessions.layout(live)).fidelity,
        )
