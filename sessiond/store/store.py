"""All SQL, as the transactions that the sessions need. Owns the database; shared by all tasks.

Every question names the user whose rows it is about: rows of others do not exist for it.
"""

import secrets
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.facts import ItemPage, ItemView
from sessiond.store import chains, items, ownership, sessions, summaries, turns
from sessiond.store.database import CONNECTIONS, Database
from sessiond.store.errors import NotOwnerError
from sessiond.store.items import Order
from sessiond.store.membership import Membership
from sessiond.store.records import (
    FIRST_EPOCH,
    KeptTurn,
    LostTurn,
    NewPrompt,
    NewSession,
    NewSummary,
    NewTurn,
    SessionDetail,
    SessionHints,
    SessionRecord,
    StoredContext,
    StoredSummary,
    TurnRecord,
)
from sessiond.store.replicas import ReplicaId
from sessiond.store.shape import Shape, View


class Store:
    """Each method is one transaction: all of it happens, or nothing.

    It is that of one replica, whose sessions nobody else can add to. `replica_name`: the same for
    every run of a server, and for no other server; "": nobody else's. `connections`: the most to
    a Postgres.

    Raises:
        StoreConfigError: the URL is of no kind that can be used.
        StoreError: from every method, when the database fails.
    """

    def __init__(self, url: str, *, replica_name: str = "", connections: int = CONNECTIONS) -> None:
        self._database = Database(url, connections=connections)
        run_id = f"rep_{secrets.token_hex(16)}"
        self._replica = ReplicaId(id=run_id, name=replica_name or run_id)
        self.membership = Membership(self._database, self._replica)

    @property
    def replica_id(self) -> str:
        """The owner of the sessions that this replica has taken."""
        return self._replica.id

    @property
    def failure(self) -> str | None:
        """Why the database took no new rows when it was asked last; None: it did."""
        return self._database.failure

    @property
    def connections_in_use(self) -> int:
        """Connections that transactions hold just now."""
        return self._database.connections_in_use

    async def close(self) -> None:
        """Wait for what runs and close every connection."""
        await self._database.close()

    # --- replicas --------------------------------------------------------------------------------

    async def fail_running(self, now: float) -> int:
        """Mark running turns that nobody runs any more as failed; returns how many."""
        return await self._database.write(lambda connection: turns.fail_running(connection, now))

    async def claim_session(
        self, user_id: str, session_id: str, now: float, *, even_if_busy: bool = False
    ) -> SessionRecord | None:
        """Own a session, unless a replica that lives runs a turn in it: then its owner stays.

        Turns that a dead owner left running are marked as failed. None: there is no such session;
        a closed one is not taken.
        """

        async def work(connection: AsyncConnection) -> SessionRecord | None:
            await ownership.claim(
                connection, self._replica, user_id, session_id, now, even_if_busy=even_if_busy
            )
            return await sessions.find(connection, user_id, session_id)

        return await self._database.write(work)

    # --- turns -----------------------------------------------------------------------------------

    async def begin_turn(
        self, turn: NewTurn, *, session: NewSession | None, prompt: NewPrompt | None
    ) -> None:
        """Commit 1: a running turn with its items, and what it is the first to use.

        Raises:
            NotOwnerError: the session is closed, or another replica has taken it.
        """

        async def work(connection: AsyncConnection) -> None:
            await self._insert_front(connection, turn.user_id, session, prompt, turn.created_at)
            await self._hold(connection, turn)
            await turns.insert(connection, turn)

        await self._database.write(work, adds_rows=True)

    async def keep_turn(self, turn: KeptTurn) -> None:
        """Commit 2: the reply, its ids, the usage, and the session's new tip.

        Twice is as good as once: of a commit that raised nobody knows whether it held.

        Raises:
            NotOwnerError: the session is closed, or another replica has taken it.
            StaleSessionError: its tip is not the turn's parent.
        """

        async def work(connection: AsyncConnection) -> None:
            try:
                await self._hold(connection, turn)
            except NotOwnerError:
                if not await turns.is_kept(connection, turn):
                    raise
            else:
                if await turns.keep(connection, turn):
                    await sessions.advance(connection, turn)

        await self._database.write(work, adds_rows=True)

    async def lose_turn(self, turn: LostTurn) -> None:
        """End a turn that joins no context."""
        await self._database.write(lambda connection: turns.lose(connection, turn))

    async def append_turn(self, turn: NewTurn, kept: KeptTurn, *, prompt: NewPrompt | None) -> None:
        """Both commits in one: a turn that no engine works on.

        Raises:
            NotOwnerError: the session is closed, or another replica has taken it.
            StaleSessionError: its tip is not the turn's parent.
        """

        async def work(connection: AsyncConnection) -> None:
            await self._hold(connection, turn)
            if prompt is not None:
                await sessions.insert_prompt(connection, turn.user_id, prompt)
            await turns.insert(connection, turn)
            await turns.keep(connection, kept)
            await sessions.advance(connection, kept)

        await self._database.write(work, adds_rows=True)

    async def find_turn(self, user_id: str, turn_id: str) -> TurnRecord | None:
        """One turn, deleted ones included."""
        return await self._database.read(
            lambda connection: turns.find(connection, user_id, turn_id)
        )

    async def reply_text(self, user_id: str, turn_id: str) -> str:
        """The text of a turn's reply; "" when there is none."""
        return await self._database.read(
            lambda connection: items.reply_text(connection, user_id, turn_id)
        )

    async def delete_turn(self, user_id: str, turn_id: str, now: float) -> bool:
        """Forget a finished turn's id; returns whether there was one to forget."""
        return await self._database.write(
            lambda connection: turns.mark_deleted(connection, user_id, turn_id, now)
        )

    # --- contexts --------------------------------------------------------------------------------

    async def context_ids(self, user_id: str, prompt_id: str, tip_id: str | None) -> list[int]:
        """The ids that the model sees in the context with this front that ends in this turn."""
        return (await self.context(user_id, prompt_id, tip_id)).visible_ids

    async def context(
        self, user_id: str, prompt_id: str, tip_id: str | None, view: View | None = None
    ) -> StoredContext:
        """The same context as an engine is given it; `view`: of a turn that begins on the tip."""
        return await self._database.read(
            lambda connection: chains.context(connection, user_id, prompt_id, tip_id, view)
        )

    async def shape(self, user_id: str, front_tokens: int, tip_id: str | None) -> Shape:
        """What the model sees in a context, without the ids."""
        return await self._database.read(
            lambda connection: chains.shape(connection, user_id, front_tokens, tip_id)
        )

    async def covers(self, user_id: str, turn_id: str, tip_id: str | None) -> bool:
        """Whether the context that ends in `tip_id` begins with what the turn left behind."""
        return await self._database.read(
            lambda connection: chains.covers(connection, user_id, turn_id, tip_id)
        )

    async def add_summary(self, summary: NewSummary) -> None:
        """Store a summary; no context has it until a turn's view names it."""
        await self._database.write(
            lambda connection: summaries.insert(connection, summary), adds_rows=True
        )

    async def newest_summary(self, user_id: str, tip_id: str | None) -> StoredSummary | None:
        """The summary that read the most of a context, used or not."""
        return await self._database.read(
            lambda connection: summaries.newest(connection, user_id, tip_id)
        )

    async def turn_ending_at(self, user_id: str, tip_id: str, history_tokens: int) -> str | None:
        """The turn up to which a context has so many history tokens; None: none ends there."""
        return await self._database.read(
            lambda connection: summaries.turn_ending_at(connection, user_id, tip_id, history_tokens)
        )

    # --- sessions --------------------------------------------------------------------------------

    async def create_session(self, session: NewSession, prompt: NewPrompt) -> None:
        """Store an empty session and its front."""
        await self._database.write(
            lambda connection: self._insert_front(
                connection, session.user_id, session, prompt, session.created_at
            ),
            adds_rows=True,
        )

    async def find_session(self, user_id: str, session_id: str) -> SessionRecord | None:
        """One session, closed ones included."""
        return await self._database.read(
            lambda connection: sessions.find(connection, user_id, session_id)
        )

    async def session_detail(self, user_id: str, session_id: str) -> SessionDetail | None:
        """One session with its turns and sums, all of one moment."""

        async def work(connection: AsyncConnection) -> SessionDetail | None:
            session = await sessions.find(connection, user_id, session_id)
            if session is None:
                return None
            return SessionDetail(
                session=session,
                history_tokens=await chains.history_tokens(connection, user_id, session.tip_id),
                context=await turns.chain(connection, user_id, session.tip_id),
                others=await turns.outside_context(connection, user_id, session_id),
                usage=await turns.usage_of(connection, user_id, session_id),
            )

        return await self._database.read(work)

    async def list_sessions(
        self, user_id: str, *, limit: int, after: str | None
    ) -> tuple[tuple[SessionDetail, ...], bool]:
        """Open sessions without their turns, latest activity first; whether others follow."""

        async def work(
            connection: AsyncConnection,
        ) -> tuple[tuple[SessionDetail, ...], bool]:
            found, has_more = await sessions.page(connection, user_id, limit=limit, after=after)
            details = [
                SessionDetail(
                    session=session,
                    history_tokens=await chains.history_tokens(connection, user_id, session.tip_id),
                    context=(),
                    others=(),
                    usage=await turns.usage_of(connection, user_id, session.id),
                )
                for session in found
            ]
            return tuple(details), has_more

        return await self._database.read(work)

    async def reset_session(self, user_id: str, session_id: str, now: float, *, epoch: int) -> None:
        """Empty the context but for its front. `epoch`: since when this replica owns the session.

        Raises:
            NotOwnerError: the session is closed, or another replica has taken it.
        """

        async def work(connection: AsyncConnection) -> None:
            await ownership.hold(connection, self._replica, user_id, session_id, epoch)
            await sessions.reset(connection, user_id, session_id, now)

        await self._database.write(work)

    async def close_session(self, user_id: str, session_id: str, now: float) -> bool:
        """End a session; returns whether it was open."""
        return await self._database.write(
            lambda connection: sessions.close(connection, user_id, session_id, now)
        )

    async def set_metadata(self, user_id: str, session_id: str, metadata: dict[str, str]) -> bool:
        """Replace a session's metadata; returns whether it was open."""
        return await self._change(user_id, session_id, metadata=metadata)

    async def set_policy(
        self, user_id: str, session_id: str, policy: dict[str, Any] | None
    ) -> bool:
        """Replace a session's own context policy; returns whether it was open."""
        return await self._change(user_id, session_id, context_policy=policy)

    async def set_hints(self, user_id: str, session_id: str, hints: SessionHints) -> bool:
        """Replace what was said of a session's KV; returns whether it was open."""
        return await self._change(
            user_id,
            session_id,
            retention=hints.retention,
            priority=hints.priority,
            ttl_s=hints.ttl_s,
        )

    async def _change(self, user_id: str, session_id: str, **values: Any) -> bool:
        return await self._database.write(
            lambda connection: sessions.change(connection, user_id, session_id, **values)
        )

    # --- users -----------------------------------------------------------------------------------

    async def user_policy(self, user_id: str) -> dict[str, Any] | None:
        """A user's context policy; None: the server's."""
        return await self._database.read(
            lambda connection: sessions.user_policy(connection, user_id)
        )

    async def set_user_policy(
        self, user_id: str, policy: dict[str, Any] | None, now: float
    ) -> None:
        """Replace it; the user need not be known."""

        async def work(connection: AsyncConnection) -> None:
            await sessions.ensure_user(connection, user_id, now)
            await sessions.set_user_policy(connection, user_id, policy)

        await self._database.write(work)

    # --- items -----------------------------------------------------------------------------------

    async def context_items(
        self, user_id: str, tip_id: str | None, *, limit: int, after: str | None, order: Order
    ) -> ItemPage:
        """A page of the messages in a context."""
        return await self._database.read(
            lambda connection: items.of_context(
                connection, user_id, tip_id, limit=limit, after=after, order=order
            )
        )

    async def turn_items(
        self, user_id: str, turn_id: str, *, limit: int, after: str | None, order: Order
    ) -> ItemPage:
        """A page of the messages that a turn brought."""
        return await self._database.read(
            lambda connection: items.of_turn(
                connection, user_id, turn_id, limit=limit, after=after, order=order
            )
        )

    async def find_item(self, user_id: str, tip_id: str | None, item_id: str) -> ItemView | None:
        """One message of a context."""
        return await self._database.read(
            lambda connection: items.find_in_context(connection, user_id, tip_id, item_id)
        )

    # --- parts of transactions -------------------------------------------------------------------

    async def _hold(self, connection: AsyncConnection, turn: NewTurn | KeptTurn) -> None:
        await ownership.hold(connection, self._replica, turn.user_id, turn.session_id, turn.epoch)

    async def _insert_front(
        self,
        connection: AsyncConnection,
        user_id: str,
        session: NewSession | None,
        prompt: NewPrompt | None,
        now: float,
    ) -> None:
        await sessions.ensure_user(connection, user_id, now)
        if prompt is not None:
            await sessions.insert_prompt(connection, user_id, prompt)
        if session is not None:
            await sessions.insert(connection, session, owner=self._replica.id, epoch=FIRST_EPOCH)
