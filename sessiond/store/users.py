"""SQL of users, their keys, and the audit log."""

from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.api_keys import HashedSecret
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
from sessiond.store.schema import audit_log, keys, sessions, users
from sessiond.store.text_padding import padded
from sessiond.store.user_salt import new_salt

_USER = sa.select(users.c.id, users.c.name, users.c.role, users.c.created_at, users.c.revoked_at)
_KEY = sa.select(keys.c.id, keys.c.user_id, keys.c.created_at, keys.c.revoked_at)


# --- users ---------------------------------------------------------------------------------------


async def insert(connection: AsyncConnection, user: NewUser) -> None:
    """Store a user with an unused name."""
    await connection.execute(
        users.insert().values(
            id=user.id,
            name=user.name,
            role=user.role,
            salt=user.salt,
            created_at=user.created_at,
        )
    )


async def find(connection: AsyncConnection, user_id: str) -> UserRecord | None:
    """One user, removed ones included."""
    return await _one_user(connection, _USER.where(users.c.id == user_id))


async def find_named(connection: AsyncConnection, name: str) -> UserRecord | None:
    """The active user with this name."""
    return await _one_user(
        connection, _USER.where(users.c.name == name, users.c.revoked_at.is_(None))
    )


async def page(
    connection: AsyncConnection, *, limit: int, after: str | None
) -> tuple[tuple[UserRecord, ...], bool]:
    """Users in order of creation, removed ones included; whether more follow."""
    place = sa.tuple_(users.c.created_at, users.c.id)
    select = _USER
    if after is not None:
        seen = sa.select(users.c.created_at, users.c.id).where(users.c.id == after).subquery("seen")
        select = select.join(seen, place > sa.tuple_(seen.c.created_at, seen.c.id))
    ordered = select.order_by(users.c.created_at, users.c.id).limit(limit + 1)
    rows = (await connection.execute(ordered)).all()
    return tuple(_user(row) for row in rows[:limit]), len(rows) > limit


async def ensure_salt(connection: AsyncConnection, user_id: str) -> None:
    """Add a salt to a user that an older version stored without one."""
    await connection.execute(
        users.update().where(users.c.id == user_id, users.c.salt.is_(None)).values(salt=new_salt())
    )


async def salts(connection: AsyncConnection, user_ids: Collection[str]) -> dict[str, bytes]:
    """Salts of users, by their ids; a user without one is left out."""
    rows = await connection.execute(
        sa.select(users.c.id, users.c.salt).where(
            users.c.id.in_(padded(user_ids)), users.c.salt.is_not(None)
        )
    )
    return {row.id: row.salt for row in rows}


async def session_owner(connection: AsyncConnection, session_id: str) -> SessionOwner | None:
    """The owner of a session, closed ones included; None: no session, or its user has no salt."""
    rows = await connection.execute(
        sa.select(users.c.id, users.c.salt)
        .join(sessions, sessions.c.user_id == users.c.id)
        .where(sessions.c.id == session_id, users.c.salt.is_not(None))
    )
    row = rows.one_or_none()
    return None if row is None else SessionOwner(user_id=row.id, salt=row.salt)


async def set_role(connection: AsyncConnection, user_id: str, role: UserRole) -> bool:
    """Replace a user's role; returns whether the user is active."""
    return await _change_user(connection, user_id, role=role)


async def revoke(connection: AsyncConnection, user_id: str, now: float) -> bool:
    """Remove a user; returns whether it was active."""
    return await _change_user(connection, user_id, revoked_at=now)


async def _change_user(connection: AsyncConnection, user_id: str, **values: Any) -> bool:
    changed = await connection.execute(
        users.update().where(users.c.id == user_id, users.c.revoked_at.is_(None)).values(**values)
    )
    return changed.rowcount == 1


async def _one_user(
    connection: AsyncConnection, select: sa.Select[*tuple[Any, ...]]
) -> UserRecord | None:
    row = (await connection.execute(select)).one_or_none()
    return None if row is None else _user(row)


def _user(row: sa.Row[*tuple[Any, ...]]) -> UserRecord:
    return UserRecord(
        id=row.id,
        name=row.name,
        role=row.role,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )


# --- keys ----------------------------------------------------------------------------------------


async def insert_key(connection: AsyncConnection, key: NewKey) -> None:
    """Store a key."""
    await connection.execute(
        keys.insert().values(
            id=key.id,
            user_id=key.user_id,
            salt=key.secret.salt,
            hash=key.secret.hash,
            created_at=key.created_at,
        )
    )


async def key_owner(connection: AsyncConnection, key_id: str) -> KeyOwner | None:
    """The owner of a key; None: it is unknown or revoked, or its user was removed."""
    rows = await connection.execute(
        sa.select(
            users.c.id,
            users.c.role,
            users.c.salt.label("user_salt"),
            keys.c.salt,
            keys.c.hash,
        )
        .join(users, users.c.id == keys.c.user_id)
        .where(keys.c.id == key_id, keys.c.revoked_at.is_(None), users.c.revoked_at.is_(None))
    )
    row = rows.one_or_none()
    if row is None:
        return None
    return KeyOwner(
        user_id=row.id,
        role=row.role,
        salt=row.user_salt,
        secret=HashedSecret(row.salt, row.hash),
    )


async def keys_of(connection: AsyncConnection, user_id: str) -> tuple[KeyRecord, ...]:
    """A user's keys, revoked ones included, oldest first."""
    rows = await connection.execute(
        _KEY.where(keys.c.user_id == user_id).order_by(keys.c.created_at, keys.c.id)
    )
    return tuple(_key(row) for row in rows)


async def find_key(connection: AsyncConnection, key_id: str) -> KeyRecord | None:
    """One key, revoked ones included."""
    row = (await connection.execute(_KEY.where(keys.c.id == key_id))).one_or_none()
    return None if row is None else _key(row)


async def usable(connection: AsyncConnection, key_ids: Collection[str]) -> frozenset[str]:
    """The valid ones among the keys."""
    rows = await connection.execute(
        sa.select(keys.c.id)
        .join(users, users.c.id == keys.c.user_id)
        .where(
            keys.c.id.in_(padded(key_ids)),
            keys.c.revoked_at.is_(None),
            users.c.revoked_at.is_(None),
        )
    )
    return frozenset(rows.scalars())


async def any_key(connection: AsyncConnection) -> bool:
    """Whether any valid key exists."""
    found = await connection.scalar(
        sa.select(keys.c.id)
        .join(users, users.c.id == keys.c.user_id)
        .where(keys.c.revoked_at.is_(None), users.c.revoked_at.is_(None))
        .limit(1)
    )
    return found is not None


async def revoke_key(connection: AsyncConnection, user_id: str, key_id: str, now: float) -> bool:
    """Revoke a user's key; returns whether it was valid."""
    return bool(await _revoke_keys(connection, now, keys.c.user_id == user_id, keys.c.id == key_id))


async def revoke_keys_of(connection: AsyncConnection, user_id: str, now: float) -> tuple[str, ...]:
    """Revoke all keys of a user; returns those that were valid."""
    return await _revoke_keys(connection, now, keys.c.user_id == user_id)


async def _revoke_keys(
    connection: AsyncConnection, now: float, *which: sa.ColumnElement[bool]
) -> tuple[str, ...]:
    changed = await connection.execute(
        keys.update()
        .where(*which, keys.c.revoked_at.is_(None))
        .values(revoked_at=now)
        .returning(keys.c.id)
    )
    return tuple(changed.scalars())


def _key(row: sa.Row[*tuple[Any, ...]]) -> KeyRecord:
    return KeyRecord(
        id=row.id, user_id=row.user_id, created_at=row.created_at, revoked_at=row.revoked_at
    )


# --- the audit log -------------------------------------------------------------------------------


async def insert_audits(connection: AsyncConnection, audits: Iterable[Audit]) -> None:
    """Insert audit entries, in the transaction of the audited change."""
    rows = [
        {
            "at": audit.at,
            "actor": audit.actor,
            "action": audit.action,
            "subject": audit.subject,
            "detail": audit.detail,
        }
        for audit in audits
    ]
    await connection.execute(audit_log.insert(), rows)


async def audits(
    connection: AsyncConnection, *, limit: int, before: int | None
) -> tuple[tuple[AuditRecord, ...], bool]:
    """The audit log, newest first; whether older rows follow."""
    select = sa.select(audit_log).order_by(audit_log.c.id.desc()).limit(limit + 1)
    if before is not None:
        select = select.where(audit_log.c.id < before)
    rows = (await connection.execute(select)).all()
    return tuple(_audit(row) for row in rows[:limit]), len(rows) > limit


def _audit(row: sa.Row[*tuple[Any, ...]]) -> AuditRecord:
    audit = Audit(
        at=row.at, actor=row.actor, action=row.action, subject=row.subject, detail=row.detail
    )
    return AuditRecord(id=row.id, audit=audit)
