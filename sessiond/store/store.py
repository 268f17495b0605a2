"""All writes to the databases, as transactions. Shared by all tasks.

Every query names the user whose rows it reads; other users' rows are invisible to it.
"""

import secrets
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.quota import Account, charged_tokens
from sessiond.store import erasing, ownership, quotas, sessions, summaries, turns
from sessiond.store.accounts import AccountStore
from sessiond.store.database import CONNECTIONS, TIMEOUT_S
from sessiond.store.errors import NotOwnerError
from sessiond.store.idempotency import UsedKeys
from sessiond.store.membership import Membership
from sessiond.store.quota_store import QuotaStore
from sessiond.store.reader import StoreReader
from sessiond.store.records import (
    FIRST_EPOCH,
    AbortedTurn,
    CommittedTurn,
    NewPrompt,
    NewReservation,
    NewSession,
    NewSummary,
    NewTurn,
    SessionHints,
    SessionRecord,
    TurnRecord,
)
from sessiond.store.replicas import ReplicaId
from sessiond.store.volatile import is_volatile

_TOMBSTONE_S = 24 * 3600.0  # a deleted session is reported as closed for this long


class Store(StoreReader):
    """Each method is one transaction, unless it says otherwise. Belongs to one replica.

    `replica_name`: stable over restarts of a server and unique among servers; "": a random name.
    `connections`: maximum to Postgres. `timeout_s`: transaction timeout on Postgres (0 = none).

    Raises:
        StoreConfigError: the URL is not supported.
        StoreError: from every method, when the database fails.
    """

    def __init__(
        self,
        url: str,
        *,
        replica_name: str = "",
        connections: int = CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(url, connections=connections, timeout_s=timeout_s)
        run_id = f"rep_{secrets.token_hex(16)}"
        self._replica = ReplicaId(id=run_id, name=replica_name or run_id)
        self.membership = Membership(self._database, self._replica)
        self.used_keys = UsedKeys(self._database)
        self.accounts = AccountStore(self._database)
        self.quotas = QuotaStore(self._database)

    @property
    def replica_id(self) -> str:
        """Id of this replica, the owner of the sessions that it has claimed."""
        return self._replica.id

    # --- replicas --------------------------------------------------------------------------------

    async def fail_running(self, now: float) -> int:
        """Fail running turns of dead replicas; returns their number."""
        return await self._database.write(lambda connection: turns.fail_running(connection, now))

    async def claim_session(
        self,
        user_id: str,
        session_id: str,
        now: float,
        *,
        dead_by: float | None = None,
        even_if_busy: bool = False,
    ) -> SessionRecord | None:
        """Claim a session unless a live replica runs a turn in it; returns its row.

        Running turns of a dead owner are marked as failed. A replica is dead if its lease had
        expired at `dead_by` (None: now). A closed session keeps its owner. Returns None if there is
        no such session.
        """

        async def work(connection: AsyncConnection) -> SessionRecord | None:
            await ownership.claim(
                connection,
                self._replica,
                user_id,
                session_id,
                now,
                dead_by=now if dead_by is None else dead_by,
                even_if_busy=even_if_busy,
            )
            return await sessions.find(connection, user_id, session_id)

        return await self._database.write(work)

    # --- turns -----------------------------------------------------------------------------------

    async def begin_turn(
        self,
        turn: NewTurn,
        *,
        session: NewSession | None,
        prompt: NewPrompt | None,
        reservation: NewReservation | None = None,
    ) -> Account:
        """Commit 1: a running turn with its items, and its new session and system prefix, if any.

        Returns the user's account after the reservation. Without a reservation the turn is charged
        when it ends. The reservation of a volatile turn is a transaction of its own in the main
        database.

        Raises:
            QuotaExceededError: the remaining quota is too small.
            NotOwnerError: the session is closed, or another replica has claimed it.
            BaseGoneError: the base of the new session was deleted.
        """

        async def reserve(connection: AsyncConnection) -> Account:
            opens = session is not None or await quotas.is_left(connection, turn)
            return await quotas.begin(
                connection,
                turn.user_id,
                turn.created_at,
                reservation,
                owner=self._replica.id,
                opens=opens,
            )

        async def insert(connection: AsyncConnection) -> None:
            await self._insert_system_prefix(
                connection, turn.user_id, session, prompt, turn.created_at
            )
            await self._hold(connection, turn)
            await turns.insert(connection, turn)

        async def work(connection: AsyncConnection) -> Account:
            left = await reserve(connection)
            await insert(connection)
            return left

        if not is_volatile(turn.session_id):
            return await self._database.write(work, adds_rows=True)
        left = await self._database.write(reserve, adds_rows=True)
        try:
            await self._memory.write(insert, adds_rows=True)
        except BaseException:
            await self._settle(turn.user_id, turn.id, 0, turn.created_at)
            raise
        return left

    async def commit_turn(self, turn: CommittedTurn) -> None:
        """Commit 2: the reply, its ids, the usage, and the session's new tip.

        Idempotent, as a commit that raised may have succeeded.

        Raises:
            NotOwnerError: the session is closed, or another replica has claimed it.
            StaleSessionError: its tip is not the turn's parent.
        """

        async def work(connection: AsyncConnection) -> None:
            if await self._commit(connection, turn):
                await quotas.settle(
                    connection,
                    turn.user_id,
                    turn.id,
                    used=charged_tokens(turn.usage),
                    now=turn.finished_at,
                )

        if not is_volatile(turn.session_id):
            await self._database.write(work, adds_rows=True)
            return
        await self._memory.write(lambda connection: self._commit(connection, turn), adds_rows=True)
        used = charged_tokens(turn.usage)  # also on a retry: this step may have failed before
        await self._settle(turn.user_id, turn.id, used, turn.finished_at)

    async def abort_turn(self, turn: AbortedTurn) -> None:
        """End a turn without adding it to the context."""
        used = charged_tokens(turn.usage, turn.error)

        async def work(connection: AsyncConnection) -> None:
            await turns.lose(connection, turn)
            await quotas.settle(connection, turn.user_id, turn.id, used=used, now=turn.finished_at)

        if not is_volatile(turn.id):
            await self._database.write(work)
            return
        # first: once the row has ended, a retry raises before it could settle the reservation
        await self._settle(turn.user_id, turn.id, used, turn.finished_at)
        await self._memory.write(lambda connection: turns.lose(connection, turn))

    async def append_turn(
        self, turn: NewTurn, kept: CommittedTurn, *, prompt: NewPrompt | None
    ) -> None:
        """Both commits in one, for a turn that no engine runs.

        Raises:
            NotOwnerError: the session is closed, or another replica has claimed it.
            StaleSessionError: its tip is not the turn's parent.
        """

        async def work(connection: AsyncConnection) -> None:
            await self._hold(connection, turn)
            if prompt is not None:
                await sessions.insert_prompt(connection, turn.user_id, prompt)
            await turns.insert(connection, turn)
            await turns.keep(connection, kept)
            await sessions.advance(connection, kept)

        await self._of(turn.session_id).write(work, adds_rows=True)

    async def delete_turn(self, user_id: str, turn_id: str, now: float) -> bool:
        """Delete a finished turn's id; returns whether it existed."""
        return await self._of(turn_id).write(
            lambda connection: turns.mark_deleted(connection, user_id, turn_id, now)
        )

    # --- contexts --------------------------------------------------------------------------------

    async def charge(self, user_id: str, summary_id: str, used: int, now: float) -> None:
        """Charge a user for the tokens that a summary cost, whether or not it is stored."""
        await self._database.write(
            lambda connection: quotas.settle(connection, user_id, summary_id, used=used, now=now)
        )

    async def add_summary(self, summary: NewSummary) -> None:
        """Store a summary; it enters a context when the view of a turn names it."""
        await self._of(summary.session_id).write(
            lambda connection: summaries.insert(connection, summary), adds_rows=True
        )

    # --- sessions --------------------------------------------------------------------------------

    async def create_session(self, session: NewSession, prompt: NewPrompt | None) -> None:
        """Store a session without a turn; `prompt`: its system prefix, if new.

        Raises:
            QuotaExceededError: the user's quota of open sessions is used up.
            BaseGoneError: its base was deleted.
        """

        async def work(connection: AsyncConnection) -> None:
            await sessions.ensure_user(connection, session.user_id, session.created_at)
            await quotas.admit_session(connection, session.user_id)
            await self._insert_system_prefix(
                connection, session.user_id, session, prompt, session.created_at
            )

        await self._of(session.id).write(work, adds_rows=True)

    async def reset_session(self, user_id: str, session_id: str, now: float, *, epoch: int) -> None:
        """Empty the context except for its system prefix. `epoch`: this replica's ownership epoch.

        Raises:
            NotOwnerError: the session is closed, or another replica has claimed it.
        """

        async def work(connection: AsyncConnection) -> None:
            await sessions.hold_all(connection, user_id)
            await ownership.hold(connection, self._replica, user_id, session_id, epoch)
            tip_id = await sessions.tip(connection, session_id)
            await sessions.reset(connection, user_id, session_id, now)
            await erasing.let_go(connection, user_id, tip_id, now, _keep_s(session_id))

        await self._of(session_id).write(work)

    async def rewind_session(  # noqa: PLR0913 -- session, present tip, new tip
        self,
        user_id: str,
        session_id: str,
        tip_id: str | None,
        turn: TurnRecord,
        now: float,
        *,
        epoch: int,
    ) -> bool:
        """Move the tip from `tip_id` back to a turn before it; returns False if the tip differs.

        Raises:
            NotOwnerError: the session is closed, or another replica has claimed it.
        """

        async def work(connection: AsyncConnection) -> bool:
            await sessions.hold_all(connection, user_id)
            await ownership.hold(connection, self._replica, user_id, session_id, epoch)
            if not await sessions.rewind(connection, user_id, session_id, tip_id, turn, now):
                return False
            await erasing.let_go(connection, user_id, tip_id, now, _keep_s(session_id))
            return True

        return await self._of(session_id).write(work)

    async def close_session(self, user_id: str, session_id: str, now: float) -> bool:
        """Close a session; delete its text and ids, except rows that open sessions need.

        Rows of other closed sessions that only this one needed are deleted, too.

        Returns:
            Whether it was open.
        """

        async def work(connection: AsyncConnection) -> bool:
            await sessions.hold_all(connection, user_id)
            was_open = await sessions.close(connection, user_id, session_id, now)
            await erasing.erase(connection, user_id, session_id, now, _keep_s(session_id))
            return was_open

        return await self._of(session_id).write(work)

    async def set_metadata(self, user_id: str, session_id: str, metadata: dict[str, str]) -> bool:
        """Replace a session's metadata; returns whether it was open."""
        return await self._change(user_id, session_id, metadata=metadata)

    async def set_policy(
        self, user_id: str, session_id: str, policy: dict[str, Any] | None
    ) -> bool:
        """Replace a session's own context policy; returns whether it was open."""
        return await self._change(user_id, session_id, context_policy=policy)

    async def set_hints(self, user_id: str, session_id: str, hints: SessionHints) -> bool:
        """Replace the hints about a session's KV; returns whether it was open."""
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

    async def set_user_policy(
        self, user_id: str, policy: dict[str, Any] | None, now: float
    ) -> None:
        """Replace a user's context policy; an unknown user is stored."""

        async def work(connection: AsyncConnection) -> None:
            await sessions.ensure_user(connection, user_id, now)
            await sessions.set_user_policy(connection, user_id, policy)

        await self._database.write(work)

    # --- parts of transactions -------------------------------------------------------------------

    async def _settle(self, user_id: str, turn_id: str, used: int, now: float) -> None:
        """Settle a volatile turn at most once: its row is in another database."""
        await self._database.write(
            lambda connection: quotas.settle(
                connection, user_id, turn_id, used=used, now=now, once=True
            )
        )

    async def _commit(self, connection: AsyncConnection, turn: CommittedTurn) -> bool:
        """Commit the turn; returns False if it was committed before."""
        try:
            await self._hold(connection, turn)
        except NotOwnerError:
            if not await turns.is_kept(connection, turn):
                raise
            return False
        if not await turns.keep(connection, turn):
            return False
        await sessions.advance(connection, turn)
        return True

    async def _hold(self, connection: AsyncConnection, turn: NewTurn | CommittedTurn) -> None:
        await ownership.hold(connection, self._replica, turn.user_id, turn.session_id, turn.epoch)

    async def _insert_system_prefix(
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
            await sessions.hold(connection, session, prompt)
            await sessions.insert(connection, session, owner=self._replica.id, epoch=FIRST_EPOCH)


def _keep_s(session_id: str) -> float:
    """Seconds that the row of a deleted session stays."""
    return 0.0 if is_volatile(session_id) else _TOMBSTONE_S
