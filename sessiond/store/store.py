"""All SQL, as the transactions that the sessions need. Owns the databases; shared by all tasks.

Rows of volatile sessions are in a database in memory, those of all others in the one of the URL.

Every question names the user whose rows it is about: rows of others do not exist for it.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.facts import ItemPage, ItemView
from sessiond.store import chains, erasing, idempotency, items, sessions, summaries, turns
from sessiond.store.database import Database, MemoryDatabase
from sessiond.store.items import Order
from sessiond.store.records import (
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
    TurnRecord,
    UsedKey,
)
from sessiond.store.shape import Shape, View
from sessiond.store.volatile import is_volatile

_TOMBSTONE_S = 24 * 3600.0  # that a session was there and is closed is told for so long


class Store:
    """Each method is one transaction: all of it happens, or nothing.

    Raises:
        StoreConfigError: the URL is of no kind that can be used.
        StoreError: from every method, when the database fails.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self._memory = MemoryDatabase()

    async def close(self) -> None:
        """Wait for what runs and close every connection."""
        await self._database.close()
        await self._memory.close()

    def _of(self, some_id: str | None) -> Database:
        """Where the rows of a session, turn or front are."""
        return self._memory if is_volatile(some_id) else self._database

    async def fail_running(self, now: float) -> int:
        """Mark the turns that an earlier run left running as failed; returns how many."""
        return await self._database.write(lambda connection: turns.fail_running(connection, now))

    # --- turns -----------------------------------------------------------------------------------

    async def begin_turn(
        self, turn: NewTurn, *, session: NewSession | None, prompt: NewPrompt | None
    ) -> None:
        """Commit 1: a running turn with its items, and what it is the first to use."""

        async def work(connection: AsyncConnection) -> None:
            await _insert_front(connection, turn.user_id, session, prompt, turn.created_at)
            await turns.insert(connection, turn)

        await self._of(turn.session_id).write(work)

    async def keep_turn(self, turn: KeptTurn) -> None:
        """Commit 2: the reply, its ids, the usage, and the session's new tip.

        Twice is as good as once: of a commit that raised nobody knows whether it held.

        Raises:
            StaleSessionError: the session is closed, or its tip is not the turn's parent.
        """

        async def work(connection: AsyncConnection) -> None:
            if await turns.keep(connection, turn):
                await sessions.advance(connection, turn)

        await self._of(turn.session_id).write(work)

    async def lose_turn(self, turn: LostTurn) -> None:
        """End a turn that joins no context."""
        await self._of(turn.id).write(lambda connection: turns.lose(connection, turn))

    async def append_turn(self, turn: NewTurn, kept: KeptTurn, *, prompt: NewPrompt | None) -> None:
        """Both commits in one: a turn that no engine works on.

        Raises:
            StaleSessionError: the session is closed, or its tip is not the turn's parent.
        """

        async def work(connection: AsyncConnection) -> None:
            if prompt is not None:
                await sessions.insert_prompt(connection, turn.user_id, prompt)
            await turns.insert(connection, turn)
            await turns.keep(connection, kept)
            await sessions.advance(connection, kept)

        await self._of(turn.session_id).write(work)

    async def find_turn(self, user_id: str, turn_id: str) -> TurnRecord | None:
        """One turn, deleted ones included."""
        return await self._of(turn_id).read(
            lambda connection: turns.find(connection, user_id, turn_id)
        )

    async def turn_by_digest(
        self, user_id: str, model: str, digests: Sequence[str]
    ) -> tuple[str, int] | None:
        """The newest turn of an open session that one may go on from, by what was said up to it.

        Returns:
            Its id, and the place of its digest: the last of those given that there is.
        """
        return await self._database.read(
            lambda connection: turns.by_digest(connection, user_id, model, digests)
        )

    async def reply_text(self, user_id: str, turn_id: str) -> str:
        """The text of a turn's reply; "" when there is none."""
        return await self._of(turn_id).read(
            lambda connection: items.reply_text(connection, user_id, turn_id)
        )

    async def delete_turn(self, user_id: str, turn_id: str, now: float) -> bool:
        """Forget a finished turn's id; returns whether there was one to forget."""
        return await self._of(turn_id).write(
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
        return await self._of(prompt_id).read(
            lambda connection: chains.context(connection, user_id, prompt_id, tip_id, view)
        )

    async def shape(self, user_id: str, front_tokens: int, tip_id: str | None) -> Shape:
        """What the model sees in a context, without the ids."""
        return await self._of(tip_id).read(
            lambda connection: chains.shape(connection, user_id, front_tokens, tip_id)
        )

    async def covers(self, user_id: str, turn_id: str, tip_id: str | None) -> bool:
        """Whether the context that ends in `tip_id` begins with what the turn left behind."""
        return await self._of(turn_id).read(
            lambda connection: chains.covers(connection, user_id, turn_id, tip_id)
        )

    async def is_in_context(self, user_id: str, turn_id: str, tip_id: str | None) -> bool:
        """Whether the context that ends in `tip_id` has the turn, seen or not."""
        return await self._of(turn_id).read(
            lambda connection: chains.contains(connection, user_id, turn_id, tip_id)
        )

    async def add_summary(self, summary: NewSummary) -> None:
        """Store a summary; no context has it until a turn's view names it."""
        await self._of(summary.session_id).write(
            lambda connection: summaries.insert(connection, summary)
        )

    # --- sessions --------------------------------------------------------------------------------

    async def create_session(self, session: NewSession, prompt: NewPrompt | None) -> None:
        """Store a session that has no turn of its own; `prompt`: its front, if that is new."""
        await self._of(session.id).write(
            lambda connection: _insert_front(
                connection, session.user_id, session, prompt, session.created_at
            )
        )

    async def find_session(self, user_id: str, session_id: str) -> SessionRecord | None:
        """One session, closed ones included."""
        return await self._of(session_id).read(
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

        return await self._of(session_id).read(work)

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

    async def reset_session(self, user_id: str, session_id: str, now: float) -> bool:
        """Empty the context but for its front; returns whether the session was open."""
        return await self._of(session_id).write(
            lambda connection: sessions.reset(connection, user_id, session_id, now)
        )

    async def rewind_session(
        self, user_id: str, session_id: str, tip_id: str | None, turn: TurnRecord, now: float
    ) -> bool:
        """Move the tip back to a turn before it; returns whether it was where it was thought."""
        return await self._of(session_id).write(
            lambda connection: sessions.rewind(connection, user_id, session_id, tip_id, turn, now)
        )

    async def close_session(self, user_id: str, session_id: str, now: float) -> bool:
        """End a session; delete its text and ids but for what open sessions are built on.

        What was left of the user's other closed sessions for such a reason goes, too, when it can.

        Returns:
            Whether it was open.
        """
        keep_s = 0.0 if is_volatile(session_id) else _TOMBSTONE_S

        async def work(connection: AsyncConnection) -> bool:
            was_open = await sessions.close(connection, user_id, session_id, now)
            await erasing.erase(connection, user_id, now - keep_s)
            return was_open

        return await self._of(session_id).write(work)

    async def dead_ends(
        self, user_id: str, session_id: str, tip_id: str | None
    ) -> list[StoredContext]:
        """What was once computed for a session and is not in its context: the newest of it."""
        return await self._of(session_id).read(
            lambda connection: erasing.dead_ends(connection, user_id, session_id, tip_id)
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
        return await self._of(session_id).write(
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

    # --- idempotency keys ------------------------------------------------------------------------

    async def used_key(self, user_id: str, key: str, since: float) -> UsedKey | None:
        """What a user's key was used for, if that was after `since`."""
        return await self._database.read(
            lambda connection: idempotency.find(connection, user_id, key, since)
        )

    async def claim_key(self, user_id: str, key: str, used: UsedKey, now: float) -> bool:
        """Use a key; False: it is in use."""

        async def work(connection: AsyncConnection) -> bool:
            await sessions.ensure_user(connection, user_id, now)
            return await idempotency.claim(connection, user_id, key, used, now)

        return await self._database.write(work)

    async def release_key(self, user_id: str, key: str, result_id: str) -> None:
        """Nothing came of what a key was used for: it is free again."""
        await self._database.write(
            lambda connection: idempotency.release(connection, user_id, key, result_id)
        )

    async def forget_keys(self, until: float) -> None:
        """Forget the keys that were used until then."""
        await self._database.write(lambda connection: idempotency.forget(connection, until))

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
        """A page of the messages that a turn brought."""
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


async def _insert_front(
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
        await sessions.insert(connection, session)
