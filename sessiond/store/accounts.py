"""Users, keys and the audit log, as the transactions that their administration needs.

Whoever changes something hands over what the audit log is to say of it: both are written, or none.
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

_MOST_AT_ONCE = 500  # values in one statement: SQLite knows a limit


class AccountStore:
    """Each method is one transaction.

    Raises:
        StoreError: from every method, when the database fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- what is asked with every request --------------------------------------------------------

    async def key_owner(self, key_id: str) -> KeyOwner | None:
        """Whose key it is; None when it is nobody's that may come in."""
        return await self._database.read(lambda connection: users.key_owner(connection, key_id))

    async def unusable(self, key_ids: Collection[str]) -> frozenset[str]:
        """Those of the keys that may not be used, or not any more."""
        ids = list(key_ids)

        async def work(connection: AsyncConnection) -> frozenset[str]:
            good: frozenset[str] = frozenset()
            for start in range(0, len(ids), _MOST_AT_ONCE):
                good |= await users.usable(connection, ids[start : start + _MOST_AT_ONCE])
            return frozenset(ids) - good

        return await self._database.read(work)

    async def any_key(self) -> bool:
        """Whether there is a key at all that may be used."""
        return await self._database.read(users.any_key)

    # --- users -----------------------------------------------------------------------------------

    async def add_user(self, user: NewUser, key: NewKey | None, audits: Collection[Audit]) -> bool:
        """Store a user, maybe with a first key; returns False when the name is taken."""

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
        """The user who has the name now."""
        return await self._database.read(lambda connection: users.find_named(connection, name))

    async def session_owner(self, session_id: str) -> SessionOwner | None:
        """Whose a stored session is, closed ones included."""
        return await self._database.read(
            lambda connection: users.session_owner(connection, session_id)
        )

    async def list_users(
        self, *, limit: int, after: str | None
    ) -> tuple[tuple[UserRecord, ...], bool]:
        """Users in the order of their coming, and whether others follow."""
        return await self._database.read(
            lambda connection: users.page(connection, limit=limit, after=after)
        )

    async def set_role(self, user_id: str, role: UserRole, audit: Audit) -> bool:
        """Replace a user's role; returns whether there is the user."""

        async def work(connection: AsyncConnection) -> bool:
            changed = await users.set_role(connection, user_id, role)
            if changed:
                await users.insert_audits(connection, [audit])
            return changed

        return await self._database.write(work)

    async def remove_user(self, user_id: str, audit: Audit) -> tuple[str, ...] | None:
        """Let a user come in no more; returns the keys that end with it. None: there is no such."""

        async def work(connection: AsyncConnection) -> tuple[str, ...] | None:
            if not await users.revoke(connection, user_id, audit.at):
                return None
            ended = await users.revoke_keys_of(connection, user_id, audit.at)
            await users.insert_audits(connection, [audit])
            return ended

        return await self._database.write(work)

    # --- keys ------------------------------------------------------------------------------------

    async def add_key(self, key: NewKey, audit: Audit) -> bool:
        """Store a further key; returns whether there is the user."""

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
        """A user's keys, revoked ones included, the oldest first."""
        return await self._database.read(lambda connection: users.keys_of(connection, user_id))

    async def find_key(self, key_id: str) -> KeyRecord | None:
        """One key, revoked ones included."""
        return await self._database.read(lambda connection: users.find_key(connection, key_id))

    async def revoke_key(self, user_id: str, key_id: str, audit: Audit) -> bool:
        """Let a key be used no more; returns whether it could until now."""

        async def work(connection: AsyncConnection) -> bool:
            revoked = await users.revoke_key(connection, user_id, key_id, audit.at)
            if revoked:
                await users.insert_audits(connection, [audit])
            return revoked

        return await self._database.write(work)

    async def rotate_key(self, key_id: str, key: NewKey, audit: Audit) -> bool:
        """Put a new key in the place of one; returns whether that could be used until now."""

        async def work(connection: AsyncConnection) -> bool:
            revoked = await users.revoke_key(connection, key.user_id, key_id, audit.at)
            if revoked:
                await users.insert_key(connection, key)
                await users.insert_audits(connection, [audit])
            return revoked

        return await self._database.write(work)

    # --- the audit log ---------------------------------------------------------------------------

    async def add_audit(self, audit: Audit) -> None:
        """Write down what was done without any row of users or keys."""
        await self._database.write(lambda connection: users.insert_audits(connection, [audit]))

    async def list_audits(
        self, *, limit: int, before: int | None
    ) -> tuple[tuple[AuditRecord, ...], bool]:
        """The audit log, the newest first, and whether older rows follow."""
        return await self._database.read(
            lambda connection: users.audits(connection, limit=limit, before=before)
        )
