"""SQL of idempotency keys: each belongs to one user and identifies one request."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store.records import UsedKey
from sessiond.store.schema import idempotency_keys


async def find(connection: AsyncConnection, user_id: str, key: str, since: float) -> UsedKey | None:
    """The request the key was used for after `since`, if any."""
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
    """Claim a key of a known user; False when it is in use."""
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
    """Free the key of a request that had no result."""
    await connection.execute(
        idempotency_keys.delete().where(
            idempotency_keys.c.user_id == user_id,
            idempotency_keys.c.key == key,
            idempotency_keys.c.result_id == result_id,
        )
    )


async def forget(connection: AsyncConnection, until: float) -> None:
    """Delete the keys used until then."""
    await connection.execute(
        idempotency_keys.delete().where(idempotency_keys.c.created_at <= until)
    )
