"""Sessions and turns as operators and clients see them: single ones and pages. Reads only."""

from collections.abc import Mapping, Sequence
from typing import Literal

from engine.ids import SessionId
from engine.ipc.client import EngineClient
from engine.ipc.queries import (
    ContextView,
    ContextViews,
    GetContext,
    GetContexts,
    PageView,
    kv_state,
)
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
from sessiond.sessions.stored_kv import StoredKv
from sessiond.store.items import Order
from sessiond.store.records import SessionChoice, SessionDetail, Standing, TurnRecord
from sessiond.store.store import Store

_OWN = SessionFilter()
_BY_ROW: Mapping[SessionState, Standing] = {
    "new": "new",
    "parked": "begun",
    "cold": "begun",
    "closed": "closed",
}
_MOST_LOOKS = 10  # pages of rows that one page of a state is chosen from


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
        self._stored = StoredKv(engine=engine, store=store, ask_timeout_s=ask_timeout_s)

    async def session(
        self,
        caller: Caller,
        session_id: str,
        *,
        include_page_table: bool = False,
        limit: int = 20,
        after: str | None = None,
    ) -> SessionView:
        """One session, closed ones included, with its newest turns; `after`: those before a turn.

        Raises:
            RequestError: there is none.
        """
        own_id = session_id_of(caller.user_id, session_id)
        detail = await self._store.session_detail(caller.user_id, own_id, limit=limit, after=after)
        if detail is None or self._sessions.is_dead(own_id):
            raise conversation_not_found(session_id)
        live = self._sessions.find(detail.session.user_id, own_id)
        held = await self._context(live)
        blocks = _blocks(held)
        if live is None or not live.is_resident(self._engine.epoch):
            salts = {caller.user_id: caller.salt}
            stored = await self._stored.blocks([detail.session], salts)
            blocks = stored.get(own_id, blocks)
        pages = held.page_table if held else []
        return await self._view(detail, live, blocks, pages if include_page_table else None)

    async def page(
        self, caller: Caller, limit: int, after: str | None, wanted: SessionFilter = _OWN
    ) -> SessionPage:
        """Sessions without their turns, latest activity first; `after`: the last id of a page.

        Stored fields are filtered in SQL, `running` and `idle` sessions by those in memory; of
        `parked` and `cold` ones so many rows are looked at that a page may be short, or empty,
        though more follow. So a page never costs all stored sessions.

        Raises:
            RequestError: the caller is no admin and lists another user's.
        """
        which = self._choice(_user_id(caller, wanted), wanted.state)
        views: list[SessionView] = []
        has_more = True
        for _look in range(1 if wanted.state is None else _MOST_LOOKS):
            details, has_more = await self._store.list_sessions(which, limit=limit, after=after)
            found = await self._views(caller, details)
            views += [view for view in found if wanted.state in {None, view.state}]
            after = details[-1].session.id if details else after
            if not has_more or len(views) > limit:
                break
        if len(views) > limit:
            has_more, after = True, views[limit - 1].id
        return SessionPage(sessions=tuple(views[:limit]), has_more=has_more, last_id=after)

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

    async def _views(self, caller: Caller, details: Sequence[SessionDetail]) -> list[SessionView]:
        """Views without page tables, with one query to the engine for all that it has."""
        lives = [self._sessions.find(one.session.user_id, one.session.id) for one in details]
        held = await self._contexts([live for live in lives if live is not None])
        blocks = {session_id: _blocks(view) for session_id, view in held.items()}
        others = [
            one.session
            for one, live in zip(details, lives, strict=True)
            if live is None or not live.is_resident(self._engine.epoch)
        ]
        if others and self._stored.may_be:
            users = {one.user_id for one in others} - {caller.user_id}
            salts = {**await self._store.user_salts(users), caller.user_id: caller.salt}
            blocks.update(await self._stored.blocks(others, salts))
        return [
            await self._view(detail, live, blocks.get(detail.session.id, BlockCounts()), None)
            for detail, live in zip(details, lives, strict=True)
        ]

    def _choice(self, user_id: str | None, state: SessionState | None) -> SessionChoice:
        if state is None:
            return SessionChoice(user_id=user_id)
        if state in _BY_ROW:
            return SessionChoice(user_id=user_id, standing=_BY_ROW[state])
        running, epoch = state == "running", self._engine.epoch
        in_memory = tuple(
            live.id
            for live in self._sessions
            if live.stored
            and not live.volatile
            and (live.state is State.RUNNING if running else live.is_resident(epoch))
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
        blocks: BlockCounts,
        pages: Sequence[PageView] | None,
    ) -> SessionView:
        session = detail.session
        own = unpack_policy(session.context_policy)
        policy = own or await self._policies.of_user(session.user_id)
        return SessionView(
            id=session.id,
            user=session.user_id,
            model=session.model,
            state=session_state(
                is_closed=session.closed_at is not None,
                is_running=live is not None and live.state is State.RUNNING,
                has_turns=session.tip_id is not None,
                blocks=blocks,
            ),
            tier=_tier(blocks),
            policy=policy.type,
            retention=session.hints.retention,
            priority=session.hints.priority,
            fidelity=session.fidelity,
            created_at=session.created_at,
            last_active_at=session.last_active_at,
            turns=_summaries(detail),
            turns_after=detail.context[0].id if detail.has_more else None,
            tokens_total=session.prompt.tokens + detail.history_tokens,
            tokens_kept=session.context_tokens,
            blocks=blocks,
            kv_bytes=self._kv_bytes(blocks),
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

    def _kv_bytes(self, blocks: BlockCounts) -> ByteCounts:
        info = self._engine.info
        per_block = info.kv_bytes_per_token * info.block_size
        return ByteCounts(
            device=blocks.device * per_block,
            host=blocks.host * per_block,
            disk=blocks.disk * per_block,
        )


def session_state(
    *, is_closed: bool, is_running: bool, has_turns: bool, blocks: BlockCounts
) -> SessionState:
    """The one rule, for REST, the command line and the console; metrics count by `kv_state`.

    >>> session_state(
    ...     is_closed=False, is_running=False, has_turns=True, blocks=BlockCounts(disk=7)
    ... )
    'parked'
    """
    if is_closed:
        return "closed"
    if is_running:
        return "running"
    return kv_state(blocks.device, blocks.host + blocks.disk) if has_turns else "new"


def _page_row(page: PageView) -> PageRow:
    return PageRow(
        block=page.block,
        first=page.first,
        last=page.last,
        base=page.base,
        references=page.references,
        hashed=page.hashed,
    )


def _tier(blocks: BlockCounts) -> Literal["device", "host", "disk", "none"]:
    """The fastest tier that holds KV of the session."""
    if blocks.device:
        return "device"
    if blocks.host:
        return "host"
    return "disk" if blocks.disk else "none"


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
    """A page of the turns in the context, then some of those that joined none."""
    system_prefix = detail.session.prompt.tokens
    rows = []
    if system_prefix and detail.context and not detail.has_more:
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
    at = detail.page_end - sum(turn.size.tokens for turn in detail.context)  # in history tokens
    for turn in detail.context:
        tokens = turn.size.tokens
        # whole turns of one input are dropped one by one: the last one counts
        is_seen = any(span.start < at + tokens <= span.stop for span in detail.seen)
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
