"""Sessions extended, reset and closed without a turn. Asyncio thread only."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine.ids import SessionId, TurnId
from engine.ipc.client import EngineClient
from engine.ipc.messages import TurnCounts, TurnDone
from sessiond.domain import (
    Caller,
    ConversationResource,
    InputItem,
    ItemPage,
    ItemView,
    SessionView,
    TurnAccepted,
    TurnRequest,
)
from sessiond.errors import RequestError
from sessiond.sessions.engine_sync import EngineSync
from sessiond.sessions.finish import CommittedEnd, end_of
from sessiond.sessions.inspection import Inspector
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.live_session import LifecycleEvent, LiveSession, LockTicket, State
from sessiond.sessions.names import session_id_of
from sessiond.sessions.plan import Planner, TurnPlan
from sessiond.sessions.refusals import busy, conversation_not_found, response_not_found
from sessiond.sessions.retention import Retention
from sessiond.sessions.run import TurnRunner
from sessiond.sessions.start import new_items, new_turn
from sessiond.store.errors import NotOwnerError, StoreError
from sessiond.store.items import Order
from sessiond.store.records import SessionRecord
from sessiond.store.store import Store

_AT_A_TIME = 100


@dataclass(slots=True)
class _Change:
    """The session's transition when its turn lock is released. None: unchanged."""

    event: LifecycleEvent | None = None


class Conversations:
    """Each change holds the session's turn lock, as a turn does."""

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        engine: EngineClient,
        store: Store,
        sessions: LiveSessions,
        clock: Callable[[], float],
        new_id: Callable[[str], str],
        inspector: Inspector,
        engine_sync: EngineSync,
        planner: Planner,
        runner: TurnRunner,
        retention: Retention,
    ) -> None:
        self._engine = engine
        self._store, self._quotas = store, store.quotas
        self._sessions = sessions
        self._inspector = inspector
        self._engine_sync = engine_sync
        self._planner = planner
        self._runner, self._replays = runner, runner.replays
        self._retention = retention
        self._clock = clock
        self._new_id = new_id

    async def get(self, caller: Caller, session_id: str) -> ConversationResource:
        """An open session as a conversation."""
        record = await self._record(caller, session_id)
        return ConversationResource(
            id=record.id, created_at=record.created_at, metadata=record.metadata
        )

    async def update(
        self, caller: Caller, session_id: str, metadata: dict[str, str]
    ) -> ConversationResource:
        """Replace the session's metadata."""
        own_id = session_id_of(caller.user_id, session_id)
        if not await self._store.set_metadata(caller.user_id, own_id, metadata):
            raise conversation_not_found(session_id)
        return await self.get(caller, session_id)

    async def add_items(
        self, caller: Caller, session_id: str, items: tuple[InputItem, ...]
    ) -> tuple[ItemView, ...]:
        """Append messages to the context; the next turn computes them. Busy: `turn_in_progress`."""
        if not items:
            raise RequestError("invalid_value", "items must not be empty", param="items")
        live = await self._sessions.open(caller, session_id)
        async with self._held(live) as change:
            request = TurnRequest(input=items, generate=False)
            plan = await self._planner.plan(live, request, runs=False)
            accepted = self._accept(live, plan, request)
            views = new_items(accepted, self._new_id)
            end = self._appended(caller, plan, accepted)
            turn = new_turn(caller.user_id, plan, accepted, views)
            await self._store.append_turn(turn, end.row, prompt=plan.new_prompt)
            live.prompt = plan.prompt
            live.tip_id, live.tokens = end.row.id, end.row.context_tokens
            live.awaits_reply, live.digest = plan.awaits_reply, end.row.digest
            live.layout = plan.layout_after(0)
            change.event = LifecycleEvent.ADVANCE
        return views

    async def list_items(
        self,
        caller: Caller,
        session_id: str,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Order = "desc",
    ) -> ItemPage:
        """The messages in the session's context."""
        record = await self._record(caller, session_id)
        return await self._store.context_items(
            caller.user_id, record.tip_id, limit=limit, after=after, order=order
        )

    async def get_item(self, caller: Caller, session_id: str, item_id: str) -> ItemView:
        """One message of the session's context."""
        record = await self._record(caller, session_id)
        item = await self._store.find_item(caller.user_id, record.tip_id, item_id)
        if item is None:
            raise RequestError(
                "conversation_not_found",
                f"there is no item {item_id!r} in conversation {session_id!r}",
                param="item_id",
            )
        return item

    async def delete_item(self, caller: Caller, session_id: str, item_id: str) -> None:
        """Refuse: a context is cut at turns only."""
        await self.get_item(caller, session_id, item_id)
        raise RequestError(
            "unsupported_parameter",
            "items cannot be deleted one by one: fork at an earlier response, or reset the session",
            param="item_id",
        )

    async def reset(
        self, caller: Caller, session_id: str, response_id: str | None = None
    ) -> SessionView:
        """Return to a response; None: to the instructions alone. Busy: `turn_in_progress`."""
        if response_id is None:
            await self._empty(caller, session_id)
        else:
            await self._rewind(caller, session_id, response_id)
        return await self._inspector.session(caller, session_id)

    async def _empty(self, caller: Caller, session_id: str) -> None:
        live = await self._sessions.open(caller, session_id)
        async with self._held(live) as change:
            await self._store.reset_session(
                caller.user_id, live.id, self._clock(), epoch=live.epoch
            )
            self._retention.unplace(live)
            live.tip_id, live.awaits_reply, live.layout, live.digest = None, False, None, None
            live.tokens = live.prompt.tokens if live.prompt else 0
            change.event = LifecycleEvent.RESET

    async def _rewind(self, caller: Caller, session_id: str, response_id: str) -> None:
        """Return to the context after one of the session's responses; drop later turns.

        Forks can still continue the dropped responses.
        """
        live = await self._sessions.open(caller, session_id)
        async with self._held(live) as change:
            user_id, tip_id = caller.user_id, live.tip_id
            turn = await self._store.find_turn(user_id, response_id)
            if (
                turn is None
                or not turn.is_checkpoint
                or not await self._store.is_in_context(user_id, response_id, tip_id)
            ):
                raise response_not_found(response_id, param="response_id")
            whole = await self._store.covers(user_id, response_id, tip_id)
            now = self._clock()
            if not await self._store.rewind_session(
                user_id, live.id, tip_id, turn, now, epoch=live.epoch
            ):
                raise conversation_not_found(session_id)
            self._retention.cut(live, turn if whole else None)
            live.prompt, live.tip_id, live.layout = turn.prompt, turn.id, None
            live.tokens, live.awaits_reply = turn.context_tokens or 0, turn.awaits_reply
            live.digest = turn.digest
            change.event = LifecycleEvent.ADVANCE

    async def close(self, caller: Caller, session_id: str) -> None:
        """Cancel the running turn, free all KV, close the session."""
        live = await self._sessions.open(caller, session_id, even_if_busy=True)
        ticket = LockTicket(None)
        live.lock_to_close(ticket)
        self._retention.join(None, live)  # else it could be unloaded meanwhile and loaded twice
        for turn in self._runner.bound_turns():
            if turn.live is live:
                self._runner.drop(turn, conversation_not_found(session_id))
                turn.cancel(keep=False)
        event: LifecycleEvent | None = None
        try:
            await ticket.granted()
            await self._engine_sync.erase(live)
            await self._store.close_session(caller.user_id, live.id, self._clock())
            event = LifecycleEvent.CLOSE
        except (StoreError, asyncio.CancelledError):
            live.stale = True
            raise
        finally:
            live.leave(ticket, event)
            if live.state is State.CLOSED:
                self._replays.forget_session(live.id)
                self._retention.forget(live)
            else:
                self._retention.settle(live, None)

    async def close_abandoned(self, before: float) -> int:
        """Close unheld sessions last active before `before`; returns the number closed.

        One call closes a bounded batch, so other work is not delayed.
        """
        ended = 0
        for user_id, session_id in await self._store.abandoned_sessions(before, _AT_A_TIME):
            live = self._sessions.find(user_id, session_id)
            if live is None:
                ended += await self._store.close_session(user_id, session_id, self._clock())
            elif live.state is State.RELEASED:
                await self.close(Caller(user_id=user_id, is_admin=False, salt=live.salt), live.id)
                ended += 1
        return ended

    async def close_idle_fork(self, caller: Caller, *, keep: SessionId | None) -> bool:
        """Close the least recently used fork that is not held, except `keep`.

        Returns:
            False when there is none.
        """
        for session_id in await self._quotas.idle_forks(caller.user_id):
            live = self._sessions.find(caller.user_id, session_id)
            if session_id == keep:
                continue
            if live is None:
                return await self._store.close_session(caller.user_id, session_id, self._clock())
            if live.state is State.RELEASED:
                await self.close(caller, session_id)
                return True
        return False

    @asynccontextmanager
    async def _held(self, live: LiveSession) -> AsyncIterator[_Change]:
        ticket, change = LockTicket(None), _Change()
        if not live.ticket(ticket):
            raise busy(live.id)
        self._retention.join(None, live)
        try:
            await self._sessions.refresh(live)
            yield change
        except NotOwnerError as error:
            live.stale = True
            raise await self._lost(live) from error
        except (StoreError, asyncio.CancelledError):
            live.stale = True  # a write that raised or was cancelled may have been committed
            raise
        finally:
            live.leave(ticket, change.event)
            self._retention.settle(live, None)

    async def _lost(self, live: LiveSession) -> RequestError:
        """The error for a session that this replica no longer owns."""
        record = await self._store.find_session(live.user_id, live.id)
        is_open = record is not None and record.closed_at is None
        return busy(live.id) if is_open else conversation_not_found(live.id)

    async def _record(self, caller: Caller, session_id: str) -> SessionRecord:
        own_id = session_id_of(caller.user_id, session_id)
        record = await self._store.find_session(caller.user_id, own_id)
        if record is None or record.closed_at is not None:
            raise conversation_not_found(session_id)
        return record

    def _accept(self, live: LiveSession, plan: TurnPlan, request: TurnRequest) -> TurnAccepted:
        return TurnAccepted(
            response_id=self._new_id(live.prefixed("resp")),
            session_id=live.id,
            message_id=self._new_id("msg"),
            previous_response_id=None,
            model=self._engine.info.model,
            instructions=plan.prompt.text,
            created_at=self._clock(),
            request=request,
        )

    def _appended(self, caller: Caller, plan: TurnPlan, accepted: TurnAccepted) -> CommittedEnd:
        """The result of a turn that only adds items."""
        ending = TurnDone(
            turn=TurnId(accepted.response_id), text="", kept_ids=[], counts=TurnCounts()
        )
        end = end_of(
            ending, user_id=caller.user_id, accepted=accepted, plan=plan, now=self._clock()
        )
        if not isinstance(end, CommittedEnd):
            raise TypeError(end)
        return end
