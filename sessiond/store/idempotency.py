"""SQL of idempotency keys: a key belongs to one user and stands for one request."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store import sessions
from sessiond.store.database import Database
from sessiond.store.records import UsedKey
from sessiond.store.schema import idempotency_keys


async def find(connection: AsyncConnection, user_id: str, key: str, since: float) -> UsedKey | None:
    """The request that used the key after `since`, if any."""
    rows = await connection.execute(
        sa.select(idempotency_keys.c.digest, idempotency_keys.c.result_id).where(
            idempotency_keys.c.user_id == user_id,
            idempotency_keys.c.key == key,
            idempotency_keys.c.created_at > since,
        )
    )
    row = rows.one_or_none()
    return None if row is None else UsedKey(digest=row.digest, result_id=row.result_id)


async def claim(
    connection: AsyncConnection, user_id: str, key: str, used: UsedKey, now: float
) -> bool:
    """Claim a key of a stored user; False when it is in use."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    claimed = await connection.execute(
        dialect.insert(idempotency_keys)
        .values(
            user_id=user_id,
            key=key,
            digest=used.digest,
            result_id=used.result_id,
            created_at=now,
        )
        .on_conflict_do_nothing()
        .returning(idempotency_keys.c.key)  # not every driver reports a row count
    )
    return claimed.first() is not None


async def release(connection: AsyncConnection, user_id: str, key: str, result_id: str) -> None:
    """Release the key of a request without a result."""
    await connection.execute(
        idempotency_keys.delete().where(
            idempotency_keys.c.user_id == user_id,
            idempotency_keys.c.key == key,
            idempotency_keys.c.result_id == result_id,
        )
    )


async def forget(connection: AsyncConnection, until: float) -> None:
    """Delete the keys used up to `until`."""
    await connection.execute(
        idempotency_keys.delete().where(idempotency_keys.c.created_at <= until)
    )


class UsedKeys:
    """Each method is one transaction; a part of `Store`.

    Raises:
        StoreError: from every method, when the database fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, user_id: str, key: str, since: float) -> UsedKey | None:
        """The request that used a user's key after `since`, if any."""
        return await self._database.read(lambda connection: find(connection, user_id, key, since))

    async def claim(self, user_id: str, key: str, used: UsedKey, now: float) -> bool:
        """Claim a key; False when it is in use."""

        async def work(connection: AsyncConnection) -> bool:
            await sessions.ensure_user(connection, user_id, now)
            return await claim(connection, user_id, key, used, now)

        return await self._database.write(work, adds_rows=True)

    async def release(self, user_id: str, key: str, result_id: str) -> None:
        """Release the key of a request without a result."""
        await self._database.write(lambda connection: release(connection, user_id, key, result_id))

    async def forget(self, until: float) -> None:
        """Delete the keys used up to `until`."""
        await self._database.write(lambda connection: forget(connection, until))
