"""SQL of replicas: servers on one database, each alive while it renews its lease."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store.schema import replicas

_FURTHEST_LEASES = 20  # five minutes of 15 s: by so much clocks of servers that live may differ
_BALLAST_BYTES = 256 * 1024  # more than a file that is full can take beside what it has


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaId:
    """Identity of a server. `id` is unique to this run; `name` survives a restart."""

    id: str
    name: str


def is_alive(owner: sa.ColumnElement[str | None], now: float) -> sa.ColumnElement[bool]:
    """Whether a replica lives."""
    return sa.exists().where(replicas.c.id == owner, replicas.c.expires_at > now)


async def register(
    connection: AsyncConnection, replica: ReplicaId, now: float, expires_at: float
) -> None:
    """Register a replica. An earlier run of the same name is over."""
    await connection.execute(
        replicas.delete().where(
            sa.or_(replicas.c.name == replica.name, replicas.c.id == replica.id)
        )
    )
    await connection.execute(
        replicas.insert().values(
            id=replica.id, name=replica.name, started_at=now, expires_at=expires_at
        )
    )


async def renew(connection: AsyncConnection, replica: ReplicaId, expires_at: float) -> bool:
    """Renew the lease; False when other replicas declared it dead."""
    changed = await connection.execute(
        replicas.update().where(replicas.c.id == replica.id).values(expires_at=expires_at)
    )
    return changed.rowcount == 1


async def bury(connection: AsyncConnection, now: float, lease_s: float) -> int:
    """Forget the replicas whose lease is over; returns how many there were.

    So is one that ends much later than any that is renewed now: its server's clock was put back,
    or was wrong, and it has died since. At a time of 0 nobody's is.

    One that just renews it, or that another buries, is left to them.
    """
    latest = now + _FURTHEST_LEASES * lease_s if now else float("inf")
    dead = (
        sa.select(replicas.c.id)
        .where(
            sa.or_(replicas.c.expires_at <= now, replicas.c.expires_at > latest),
        )
        .with_for_update(skip_locked=True)
    )
    gone = await connection.execute(replicas.delete().where(replicas.c.id.in_(dead)))
    return gone.rowcount


async def resign(connection: AsyncConnection, replica: ReplicaId) -> None:
    """End the lease: owned sessions become free."""
    await connection.execute(replicas.delete().where(replicas.c.id == replica.id))


async def fill(connection: AsyncConnection, replica: ReplicaId, *, full: bool) -> None:
    """Take some room, or give it back: a full disk may still take what replaces a row."""
    ballast = bytes(_BALLAST_BYTES) if full else None
    await connection.execute(
        replicas.update().where(replicas.c.id == replica.id).values(ballast=ballast)
    )
