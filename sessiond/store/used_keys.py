"""Idempotency keys and the requests they identify."""

from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store import idempotency, sessions
from sessiond.store.database import Database
from sessiond.store.records import UsedKey


class UsedKeys:
    """Each method is one transaction; a part of `Store`.

    Raises:
        StoreError: from every method, when the database fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, user_id: str, key: str, since: float) -> UsedKey | None:
        """The request a user's key was used for after `since`, if any."""
        return await self._database.read(
            lambda connection: idempotency.find(connection, user_id, key, since)
        )

    async def claim(self, user_id: str, key: str, used: UsedKey, now: float) -> bool:
        """Claim a key; False when it is in use."""

        async def work(connection: AsyncConnection) -> bool:
            await sessions.ensure_user(connection, user_id, now)
            return await idempotency.claim(connection, user_id, key, used, now)

        return await self._database.write(work, adds_rows=True)

    async def release(self, user_id: str, key: str, result_id: str) -> None:
        """Free the key of a request that had no result."""
        await self._database.write(
            lambda connection: idempotency.release(connection, user_id, key, result_id)
        )

    async def forget(self, until: float) -> None:
        """Delete the keys used until then."""
        await self._database.write(lambda connection: idempotency.forget(connection, until))
