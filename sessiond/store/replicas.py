"""SQL of replicas: servers on one database, each alive while it renews its lease."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store.schema import replicas

_FURTHEST_LEASES = 20  # leases (of 15 s: five minutes) by which clocks of live servers may differ
_BALLAST_BYTES = 256 * 1024  # more than the free pages of a file on a full disk


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaId:
    """Identity of a server. `id` is unique to this run; `name` survives a restart."""

    id: str
    name: str


def is_alive(owner: sa.ColumnElement[str | None], now: float) -> sa.ColumnElement[bool]:
    """Whether a replica's lease is valid at `now`."""
    return sa.exists().where(replicas.c.id == owner, replicas.c.expires_at > now)


async def register(
    connection: AsyncConnection, replica: ReplicaId, now: float, expires_at: float
) -> list[str]:
    """Register a replica; an earlier run of the same name is removed. Returns ids of such runs."""
    removed = await connection.scalars(
        replicas.delete()
        .where(sa.or_(replicas.c.name == replica.name, replicas.c.id == replica.id))
        .returning(replicas.c.id)
    )
    earlier = [one for one in removed if one != replica.id]
    await connection.execute(
        replicas.insert().values(
            id=replica.id, name=replica.name, started_at=now, expires_at=expires_at
        )
    )
    return earlier


async def renew(connection: AsyncConnection, replica: ReplicaId, expires_at: float) -> bool:
    """Renew the lease; False when other replicas declared it dead."""
    changed = await connection.execute(
        replicas.update().where(replicas.c.id == replica.id).values(expires_at=expires_at)
    )
    return changed.rowcount == 1


async def bury(connection: AsyncConnection, now: float, lease_s: float) -> list[str]:
    """Delete the replicas whose lease has expired; returns their ids.

    A lease that ends too far in the future counts as expired: its server's clock was wrong or set
    back, and the server has died since. At `now` 0 none is expired.

    Rows locked by a renewal or by another replica's call are skipped.
    """
    latest = now + _FURTHEST_LEASES * lease_s if now else float("inf")
    dead = (
        sa.select(replicas.c.id)
        .where(
            sa.or_(replicas.c.expires_at <= now, replicas.c.expires_at > latest),
        )
        .with_for_update(skip_locked=True)
    )
    deleted = await connection.scalars(
        replicas.delete().where(replicas.c.id.in_(dead)).returning(replicas.c.id)
    )
    return list(deleted)


async def resign(connection: AsyncConnection, replica: ReplicaId) -> None:
    """Delete the replica: its sessions have no live owner any more."""
    await connection.execute(replicas.delete().where(replicas.c.id == replica.id))


async def fill(connection: AsyncConnection, replica: ReplicaId, *, full: bool) -> None:
    """Allocate or free ballast, to test the disk: a full one may still allow updates of rows."""
    ballast = bytes(_BALLAST_BYTES) if full else None
    await connection.execute(
        replicas.update().where(replicas.c.id == replica.id).values(ballast=ballast)
    )
