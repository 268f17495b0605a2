"""Sessions and turns as operators and clients see them: single ones and pages. Reads only."""

from collections.abc import Mapping, Sequence
from typing import Literal

from engine.ids import SessionId
from engine.ipc.client import EngineClient
from engine.ipc.queries import ContextView, ContextViews, GetContext, GetContexts, PageView
from sessiond.domain import (
    EVERYBODY,
    BlockCounts,
    ByteCounts,
    Caller,
    ItemPage,
    PageRow,
    ResponseView,
    SessionFilter,
    SessionPage,
    SessionState,
    SessionView,
    TurnAccepted,
    TurnFinished,
    TurnSummary,
)
from sessiond.errors import RequestError
from sessiond.sessions.context_policies import ContextPolicies
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.live_session import LiveSession, State
from sessiond.sessions.names import session_id_of
from sessiond.sessions.queries import ask_in_time
from sessiond.sessions.refusals import conversation_not_found, response_not_found
from sessiond.sessions.request_form import unpack_policy, unpack_request
from sessiond.store.context_layout import layout_of
from sessiond.store.items import Order
from sessiond.store.records import SessionChoice, SessionDetail, SessionRecord, Standing, TurnRecord
from sessiond.store.store import Store

_OWN = SessionFilter()
_BY_ROW: Mapping[SessionState, Standing] = {"new": "new", "cold": "begun", "closed": "closed"}


class Inspector:
    """Joins the state of sessions in SQL, in memory and in the engine."""

    def __init__(
        self,
        *,
        engine: EngineClient,
        store: Store,
        sessions: LiveSessions,
        ask_timeout_s: float,
        policies: ContextPolicies,
    ) -> None:
        self._policies = policies
        self._engine = engine
        self._store = store
        self._sessions = sessions
        self._ask_timeout_s = ask_timeout_s

    async def session(
        self, caller: Caller, session_id: str, *, include_page_table: bool = False
    ) -> SessionView:
        """One session, closed ones included.

        Raises:
            RequestError: there is none.
        """
        own_id = session_id_of(caller.user_id, session_id)
        detail = await self._store.session_detail(caller.user_id, own_id)
        if detail is None or self._sessions.is_dead(own_id):
            raise conversation_not_found(session_id)
        live = self._sessions.find(detail.session.user_id, own_id)
        held = await self._context(live)
        pages = held.page_table if held else []
        return await self._view(detail, live, held, pages if include_page_table else None)

    async def page(
        self, caller: Caller, limit: int, after: str | None, wanted: SessionFilter = _OWN
    ) -> SessionPage:
        """Sessions without their turns, latest activity first; `after`: the last id of a page.

        Stored fields are filtered in SQL, states that only memory knows by the sessions in memory:
        a page costs its size plus at most the sessions in memory, never all stored ones.

        Raises:
            RequestError: the caller is no admin and lists another user's.
        """
        which = self._choice(_user_id(caller, wanted), wanted.state)
        views: list[SessionView] = []
        has_more = True
        while has_more and len(views) <= limit:
            details, has_more = await self._store.list_sessions(which, limit=limit, after=after)
            found = await self._views(details)
            views += [view for view in found if wanted.state in {None, view.state}]
            after = details[-1].session.id if details else None
            if wanted.state is None:
                break
        return SessionPage(sessions=tuple(views[:limit]), has_more=has_more or len(views) > limit)

    async def response(self, caller: Caller, response_id: str) -> ResponseView:
        """A stored turn in any status.

        Raises:
            RequestError: there is none.
        """
        turn = await self._turn(caller, response_id)
        text = await self._store.reply_text(caller.user_id, response_id)
        accepted = TurnAccepted(
            response_id=turn.id,
            session_id=turn.session_id,
            message_id=turn.message_id,
            previous_response_id=turn.previous_response_id,
            model=turn.model,
            instructions=turn.prompt.text,
            created_at=turn.created_at,
            request=unpack_request(turn.request),
        )
        return ResponseView(
            accepted=accepted, finished=_finished(turn, text), finished_at=turn.finished_at
        )

    async def input_items(
        self,
        caller: Caller,
        response_id: str,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Order = "desc",
    ) -> ItemPage:
        """The messages that came with the turn.

        Raises:
            RequestError: there is no such turn.
        """
        await self._turn(caller, response_id)
        return await self._store.turn_items(
            caller.user_id, response_id, limit=limit, after=after, order=order
        )

    async def _views(self, details: Sequence[SessionDetail]) -> list[SessionView]:
        """Views without page tables, with one query to the engine for all of them."""
        lives = [self._sessions.find(one.session.user_id, one.session.id) for one in details]
        held = await self._contexts([live for live in lives if live is not None])
        return [
            await self._view(detail, live, held.get(detail.session.id), None)
            for detail, live in zip(details, lives, strict=True)
        ]

    def _choice(self, user_id: str | None, state: SessionState | None) -> SessionChoice:
        if state is None:
            return SessionChoice(user_id=user_id)
        if state in _BY_ROW:
            return SessionChoice(user_id=user_id, standing=_BY_ROW[state])
        in_memory = tuple(
            live.id
            for live in self._sessions
            if live.stored
            and not live.volatile
            and live.state.value == state
            and user_id in {None, live.user_id}
        )
        return SessionChoice(user_id=user_id, ids=in_memory)

    async def _turn(self, caller: Caller, response_id: str) -> TurnRecord:
        turn = await self._store.find_turn(caller.user_id, response_id)
        if turn is None or turn.deleted_at is not None or self._sessions.is_dead(turn.session_id):
            raise response_not_found(response_id)
        return turn

    async def _view(
        self,
        detail: SessionDetail,
        live: LiveSession | None,
        held: ContextView | None,
        pages: Sequence[PageView] | None,
    ) -> SessionView:
        session = detail.session
        own = unpack_policy(session.context_policy)
        policy = own or await self._policies.of_user(session.user_id)
        return SessionView(
            id=session.id,
            user=session.user_id,
            model=session.model,
            state=self._state(session, live, held),
            tier=_tier(held),
            policy=policy.type,
            retention=session.hints.retention,
            priority=session.hints.priority,
            fidelity=session.fidelity,
            created_at=session.created_at,
            last_active_at=session.last_active_at,
            turns=_summaries(detail),
            tokens_total=session.prompt.tokens + detail.history_tokens,
            tokens_kept=session.context_tokens,
            blocks=_blocks(held),
            kv_bytes=self._kv_bytes(held),
            usage=detail.usage,
            instructions=session.prompt.text,
            page_table=None if pages is None else tuple(map(_page_row, pages)),
        )

    async def _context(self, live: LiveSession | None) -> ContextView | None:
        """The engine's context; None when it has none or does not answer."""
        if live is None or not live.is_resident(self._engine.epoch):
            return None
        query = GetContext(session=SessionId(live.id))
        try:
            answer = await ask_in_time(self._engine, query, self._ask_timeout_s)
        except RequestError:  # sessions are shown without an engine, too
            return None
        return answer if isinstance(answer, ContextView) else None

    async def _contexts(self, lives: Sequence[LiveSession]) -> dict[str, ContextView]:
        """The engine's contexts of several sessions, by id."""
        resident = tuple(live.id for live in lives if live.is_resident(self._engine.epoch))
        if not resident:
            return {}
        try:
            query = GetContexts(sessions=resident)
            answer = await ask_in_time(self._engine, query, self._ask_timeout_s)
        except RequestError:
            return {}
        contexts = answer.contexts if isinstance(answer, ContextViews) else []
        return {view.session: view for view in contexts}

    def _kv_bytes(self, held: ContextView | None) -> ByteCounts:
        if held is None:
            return ByteCounts()
        info = self._engine.info
        per_block = info.kv_bytes_per_token * info.block_size
        return ByteCounts(
            device=held.kv_bytes,
            host=held.host_blocks * per_block,
            disk=held.disk_blocks * per_block,
        )

    def _state(
        self, session: SessionRecord, live: LiveSession | None, held: ContextView | None
    ) -> SessionState:
        if session.closed_at is not None:
            return "closed"
        if live is None:
            return "new" if session.tip_id is None else "cold"
        # A restarted engine has no contexts; the next turn finds KV in the tiers.
        resident = {
            State.IDLE: live.is_resident(self._engine.epoch),
            State.PARKED: _tier(held) != "none",
        }
        return live.state.value if resident.get(live.state, True) else "cold"


def _page_row(page: PageView) -> PageRow:
    return PageRow(
        block=page.block,
        first=page.first,
        last=page.last,
        base=page.base,
        references=page.references,
        hashed=page.hashed,
    )


def _tier(held: ContextView | None) -> Literal["device", "host", "disk", "none"]:
    """The fastest tier that holds KV of the session."""
    if held is None:
        return "none"
    if held.blocks:
        return "device"
    if held.host_blocks:
        return "host"
    return "disk" if held.disk_blocks else "none"


def _blocks(held: ContextView | None) -> BlockCounts:
    if held is None:
        return BlockCounts()
    return BlockCounts(
        device=held.blocks,
        host=held.host_blocks,
        disk=held.disk_blocks,
        shared=held.shared_blocks,
    )


def _finished(turn: TurnRecord, text: str) -> TurnFinished | None:
    if turn.status == "running":
        return None
    return TurnFinished(
        status="incomplete" if turn.status == "cancelled" else turn.status,
        text=text,
        usage=turn.usage,
        reason=turn.reason,
        error=turn.error,
    )


def _summaries(detail: SessionDetail) -> tuple[TurnSummary, ...]:
    """The turns in the context, then those that joined none."""
    system_prefix = detail.session.prompt.tokens
    rows = []
    if system_prefix and detail.context:
        rows.append(
            TurnSummary(
                response_id=detail.context[0].id,
                role="system",
                start=0,
                tokens=system_prefix,
                kept=system_prefix,
                status="completed",
            )
        )
    seen = layout_of(system_prefix, [turn.size for turn in detail.context]).turns
    at = 0  # in history tokens
    for turn in detail.context:
        tokens = turn.size.tokens
        is_seen = any(span.start <= at and at + tokens <= span.stop for span in seen)
        rows += _turn_rows(turn, system_prefix + at, system_prefix + at + tokens, is_seen=is_seen)
        at += tokens
    for turn in detail.others:
        rows.append(
            TurnSummary(
                response_id=turn.id,
                role="user",
                start=turn.start_tokens,
                tokens=turn.input_tokens,
                kept=0,
                status=turn.status,
            )
        )
    return tuple(rows)


def _turn_rows(turn: TurnRecord, start: int, after: int, *, is_seen: bool) -> list[TurnSummary]:
    """A turn's input and reply. Positions count all turns after the system prefix."""
    reply = start + turn.input_tokens
    rows = [
        TurnSummary(
            response_id=turn.id,
            role="user",
            start=start,
            tokens=turn.input_tokens,
            kept=turn.input_tokens if is_seen else 0,
            status=turn.status,
        )
    ]
    if after > reply:
        rows.append(
            TurnSummary(
                response_id=turn.id,
                role="assistant",
                start=reply,
                tokens=after - reply,
                kept=after - reply if is_seen else 0,
                status=turn.status,
            )
        )
    return rows


def _user_id(caller: Caller, wanted: SessionFilter) -> str | None:
    """The user's id; None: all users."""
    user_id = caller.user_id if wanted.user_id is None else wanted.user_id
    if user_id != caller.user_id and not caller.is_admin:
        raise RequestError(
            "permission_denied", "only an admin may list the sessions of other users", param="user"
        )
    return None if user_id == EVERYBODY else user_id
