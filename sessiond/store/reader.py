"""All queries to the databases. Owns them; shared by all tasks.

Rows of volatile sessions are in a database in memory, all others in the database of the URL.

Every query names the user whose rows it reads; other users' rows are invisible to it.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.domain import ItemPage, ItemView
from sessiond.store import chains, erasing, items, sessions, summaries, turns, usage, users
from sessiond.store.context_layout import ContextLayout, VisibleSpans
from sessiond.store.database import CONNECTIONS, TIMEOUT_S, Database, MemoryDatabase
from sessiond.store.items import Order
from sessiond.store.records import (
    SessionChoice,
    SessionDetail,
    SessionRecord,
    StoredContext,
    StoredSummary,
    TurnRecord,
)
from sessiond.store.volatile import is_volatile

_TURNS = 20  # of a session, in one page


class StoreReader:
    """Each result is a snapshot. `connections`: maximum to Postgres.

    `timeout_s`: transaction timeout on Postgres (0 = none).

    Raises:
        StoreConfigError: the URL is not supported.
        StoreError: from every method, when the database fails.
    """

    def __init__(
        self, url: str, *, connections: int = CONNECTIONS, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._database = Database(url, connections=connections, timeout_s=timeout_s)
        self._memory = MemoryDatabase()

    @property
    def database(self) -> Database:
        """The connections, for statements that are not the store's own."""
        return self._database

    @property
    def memory(self) -> Database:
        """The same tables for rows that are never written down."""
        return self._memory

    @property
    def failure(self) -> str | None:
        """Reason of the last failed insert; None when it succeeded."""
        return self._database.failure

    @property
    def connections_in_use(self) -> int:
        """Connections in use by transactions."""
        return self._database.connections_in_use

    async def close(self) -> None:
        """Wait for running transactions and close every connection."""
        await self._database.close()
        await self._memory.close()

    def _of(self, some_id: str | None) -> Database:
        """The database with the rows of a session, turn or system prefix."""
        return self._memory if is_volatile(some_id) else self._database

    # --- turns -----------------------------------------------------------------------------------

    async def find_turn(self, user_id: str, turn_id: str) -> TurnRecord | None:
        """One turn, deleted ones included."""
        return await self._of(turn_id).read(
            lambda connection: turns.find(connection, user_id, turn_id)
        )

    async def turn_by_digest(
        self, user_id: str, model: str, digests: Sequence[str]
    ) -> tuple[str, int] | None:
        """The newest committed turn of an open session with the last digest that any turn has.

        Returns:
            Its id and the digest's index in the sequence.
        """
        return await self._database.read(
            lambda connection: turns.by_digest(connection, user_id, model, digests)
        )

    async def reply_text(self, user_id: str, turn_id: str) -> str:
        """The text of a turn's reply; "" when there is none."""
        return await self._of(turn_id).read(
            lambda connection: items.reply_text(connection, user_id, turn_id)
        )

    # --- contexts --------------------------------------------------------------------------------

    async def context_ids(self, user_id: str, prompt_id: str, tip_id: str | None) -> list[int]:
        """The visible ids of the context with this system prefix and tip."""
        return (await self.context(user_id, prompt_id, tip_id)).visible_ids

    async def context(
        self, user_id: str, prompt_id: str, tip_id: str | None, view: VisibleSpans | None = None
    ) -> StoredContext:
        """The context as it is sent to an engine; `view`: of a turn that starts at the tip."""
        return await self._of(prompt_id).read(
            lambda connection: chains.context(connection, user_id, prompt_id, tip_id, view)
        )

    async def layout(self, user_id: str, prefix_tokens: int, tip_id: str | None) -> ContextLayout:
        """The layout of a context, without its ids."""
        return await self._of(tip_id).read(
            lambda connection: chains.layout(connection, user_id, prefix_tokens, tip_id)
        )

    async def covers(self, user_id: str, turn_id: str, tip_id: str | None) -> bool:
        """Whether the context at `tip_id` starts with the whole context after the turn."""
        return await self._of(turn_id).read(
            lambda connection: chains.covers(connection, user_id, turn_id, tip_id)
        )

    async def is_in_context(self, user_id: str, turn_id: str, tip_id: str | None) -> bool:
        """Whether the context at `tip_id` includes the turn, visible or not."""
        return await self._of(turn_id).read(
            lambda connection: chains.contains(connection, user_id, turn_id, tip_id)
        )

    async def newest_summary(self, user_id: str, tip_id: str | None) -> StoredSummary | None:
        """The summary written from the longest part of a context, used or not."""
        return await self._of(tip_id).read(
            lambda connection: summaries.newest(connection, user_id, tip_id)
        )

    async def turn_ending_at(self, user_id: str, tip_id: str, history_tokens: int) -> str | None:
        """The last turn of a context's first `history_tokens`; None: no turn ends there."""
        return await self._of(tip_id).read(
            lambda connection: summaries.turn_ending_at(connection, user_id, tip_id, history_tokens)
        )

    # --- sessions --------------------------------------------------------------------------------

    async def find_session(self, user_id: str, session_id: str) -> SessionRecord | None:
        """One session, closed ones included."""
        return await self._of(session_id).read(
            lambda connection: sessions.find(connection, user_id, session_id)
        )

    async def session_detail(
        self, user_id: str, session_id: str, *, limit: int = _TURNS, after: str | None = None
    ) -> SessionDetail | None:
        """One session with its newest turns and total usage, in one snapshot.

        `after`: a turn; the page ends before it.
        """

        async def work(connection: AsyncConnection) -> SessionDetail | None:
            session = await sessions.find(connection, user_id, session_id)
            if session is None:
                return None
            last = session.tip_id
            others: tuple[TurnRecord, ...] = ()
            if after is None:
                others = await turns.outside_context(connection, user_id, session_id, limit)
            else:
                last = await turns.parent_of(connection, user_id, after)
            found = await turns.chain(connection, user_id, last, limit + 1)
            history = await chains.history_tokens(connection, session.tip_id)
            return SessionDetail(
                session=session,
                history_tokens=history,
                context=found[-limit:],
                others=others,
                usage=session.usage
                or (await usage.summed(connection, {session_id: user_id}))[session_id],
                page_end=await chains.history_tokens(connection, last),
                seen=await chains.seen_spans(connection, session.tip_id, history),
                has_more=len(found) > limit,
            )

        return await self._of(session_id).read(work)

    async def abandoned_sessions(self, before: float, limit: int) -> tuple[tuple[str, str], ...]:
        """Users and ids of some open sessions without a running turn, last active before then."""
        return await self._database.read(
            lambda connection: sessions.abandoned(connection, before, limit)
        )

    async def list_sessions(
        self, which: SessionChoice, *, limit: int, after: str | None
    ) -> tuple[tuple[SessionDetail, ...], bool]:
        """Sessions without their turns, latest activity first; whether more follow."""

        async def work(
            connection: AsyncConnection,
        ) -> tuple[tuple[SessionDetail, ...], bool]:
            found, has_more = await sessions.page(connection, which, limit=limit, after=after)
            tips = [session.tip_id for session in found if session.tip_id is not None]
            tokens = await chains.many_history_tokens(connection, tips)
            owners = {one.id: one.user_id for one in found if one.usage is None}
            summed = await usage.summed(connection, owners) if owners else {}
            details = [
                SessionDetail(
                    session=session,
                    history_tokens=tokens.get(session.tip_id or "", 0),
                    context=(),
                    others=(),
                    usage=session.usage or summed[session.id],
                )
                for session in found
            ]
            return tuple(details), has_more

        return await self._database.read(work)

    async def dead_ends(
        self, user_id: str, session_id: str, tip_id: str | None
    ) -> list[StoredContext]:
        """The newest branches that were computed for a session and are not in its context."""
        return await self._of(session_id).read(
            lambda connection: erasing.dead_ends(connection, user_id, session_id, tip_id)
        )

    # --- users -----------------------------------------------------------------------------------

    async def user_salts(self, user_ids: Collection[str]) -> dict[str, bytes]:
        """Salts of stored users, by their ids."""
        if not user_ids:
            return {}
        return await self._database.read(lambda connection: users.salts(connection, user_ids))

    async def user_policy(self, user_id: str) -> dict[str, Any] | None:
        """A user's context policy; None: the server's."""
        return await self._database.read(
            lambda connection: sessions.user_policy(connection, user_id)
        )

    # --- items -----------------------------------------------------------------------------------

    async def context_items(
        self, user_id: str, tip_id: str | None, *, limit: int, after: str | None, order: Order
    ) -> ItemPage:
        """A page of the messages in a context."""
        return await self._of(tip_id).read(
            lambda connection: items.of_context(
                connection, user_id, tip_id, limit=limit, after=after, order=order
            )
        )

    async def turn_items(
        self, user_id: str, turn_id: str, *, limit: int, after: str | None, order: Order
    ) -> ItemPage:
        """A page of a turn's input messages."""
        return await self._of(turn_id).read(
            lambda connection: items.of_turn(
                connection, user_id, turn_id, limit=limit, after=after, order=order
            )
        )

    async def find_item(self, user_id: str, tip_id: str | None, item_id: str) -> ItemView | None:
        """One message of a context."""
        return await self._of(tip_id).read(
            lambda connection: items.find_in_context(connection, user_id, tip_id, item_id)
        )
