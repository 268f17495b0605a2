"""Transactions on users, keys and the audit log.

Each change comes with its audit entry: both are written, or neither.
"""

from collections.abc import Collection

from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store import users
from sessiond.store.account_records import (
    Audit,
    AuditRecord,
    KeyOwner,
    KeyRecord,
    NewKey,
    NewUser,
    SessionOwner,
    UserRecord,
    UserRole,
)
from sessiond.store.database import Database

_MOST_AT_ONCE = 500  # values in one statement: SQLite has a limit


class AccountStore:
    """Each method is one transaction.

    Raises:
        StoreError: from every method, when the database fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- queries of every request --------------------------------------------------------

    async def key_owner(self, key_id: str) -> KeyOwner | None:
        """The owner of a key; None when the key is not valid."""
        return await self._database.read(lambda connection: users.key_owner(connection, key_id))

    async def unusable(self, key_ids: Collection[str]) -> frozenset[str]:
        """The invalid or revoked ones among the keys."""
        ids = list(key_ids)

        async def work(connection: AsyncConnection) -> frozenset[str]:
            valid: frozenset[str] = frozenset()
            for start in range(0, len(ids), _MOST_AT_ONCE):
                valid |= await users.usable(connection, ids[start : start + _MOST_AT_ONCE])
            return frozenset(ids) - valid

        return await self._database.read(work)

    async def any_key(self) -> bool:
        """Whether any valid key exists."""
        return await self._database.read(users.any_key)

    # --- users -----------------------------------------------------------------------------------

    async def add_user(self, user: NewUser, key: NewKey | None, audits: Collection[Audit]) -> bool:
        """Store a user, optionally with a first key; returns False when the name is taken."""

        async def work(connection: AsyncConnection) -> bool:
            if await users.find_named(connection, user.name) is not None:
                return False
            await users.insert(connection, user)
            if key is not None:
                await users.insert_key(connection, key)
            await users.insert_audits(connection, audits)
            return True

        return await self._database.write(work)

    async def find_user(self, user_id: str) -> UserRecord | None:
        """One user, removed ones included."""
        return await self._database.read(lambda connection: users.find(connection, user_id))

    async def find_named(self, name: str) -> UserRecord | None:
        """The active user with this name."""
        return await self._database.read(lambda connection: users.find_named(connection, name))

    async def session_owner(self, session_id: str) -> SessionOwner | None:
        """The owner of a stored session, closed ones included."""
        return await self._database.read(
            lambda connection: users.session_owner(connection, session_id)
        )

    async def list_users(
        self, *, limit: int, after: str | None
    ) -> tuple[tuple[UserRecord, ...], bool]:
        """Users in order of creation, and whether more follow."""
        return await self._database.read(
            lambda connection: users.page(connection, limit=limit, after=after)
        )

    async def set_role(self, user_id: str, role: UserRole, audit: Audit) -> bool:
        """Replace a user's role; returns whether the user exists."""

        async def work(connection: AsyncConnection) -> bool:
            changed = await users.set_role(connection, user_id, role)
            if changed:
                await users.insert_audits(connection, [audit])
            return changed

        return await self._database.write(work)

    async def remove_user(self, user_id: str, audit: Audit) -> tuple[str, ...] | None:
        """Remove a user; returns the keys this revokes, None when the user is unknown."""

        async def work(connection: AsyncConnection) -> tuple[str, ...] | None:
            if not await users.revoke(connection, user_id, audit.at):
                return None
            revoked = await users.revoke_keys_of(connection, user_id, audit.at)
            await users.insert_audits(connection, [audit])
            return revoked

        return await self._database.write(work)

    # --- keys ------------------------------------------------------------------------------------

    async def add_key(self, key: NewKey, audit: Audit) -> bool:
        """Store a key; returns whether the user is active."""

        async def work(connection: AsyncConnection) -> bool:
            user = await users.find(connection, key.user_id)
            if user is None or user.revoked_at is not None:
                return False
            await users.ensure_salt(connection, key.user_id)
            await users.insert_key(connection, key)
            await users.insert_audits(connection, [audit])
            return True

        return await self._database.write(work)

    async def list_keys(self, user_id: str) -> tuple[KeyRecord, ...]:
        """A user's keys, revoked ones included, oldest first."""
        return await self._database.read(lambda connection: users.keys_of(connection, user_id))

    async def find_key(self, key_id: str) -> KeyRecord | None:
        """One key, revoked ones included."""
        return await self._database.read(lambda connection: users.find_key(connection, key_id))

    async def revoke_key(self, user_id: str, key_id: str, audit: Audit) -> bool:
        """Revoke a key; returns whether it was valid."""

        async def work(connection: AsyncConnection) -> bool:
            revoked = await users.revoke_key(connection, user_id, key_id, audit.at)
            if revoked:
                await users.insert_audits(connection, [audit])
            return revoked

        return await self._database.write(work)

    async def rotate_key(self, key_id: str, key: NewKey, audit: Audit) -> bool:
        """Replace a key by a new one; returns whether the old one was valid."""

        async def work(connection: AsyncConnection) -> bool:
            revoked = await users.revoke_key(connection, key.user_id, key_id, audit.at)
            if revoked:
                await users.insert_key(connection, key)
                await users.insert_audits(connection, [audit])
            return revoked

        return await self._database.write(work)

    # --- the audit log ---------------------------------------------------------------------------

    async def add_audit(self, audit: Audit) -> None:
        """Record an action that changes no row of users or keys."""
        await self._database.write(lambda connection: users.insert_audits(connection, [audit]))

    async def list_audits(
        self, *, limit: int, before: int | None
    ) -> tuple[tuple[AuditRecord, ...], bool]:
        """The audit log, newest first, and whether older rows follow."""
        return await self._database.read(
            lambda connection: users.audits(connection, limit=limit, before=before)
        )
