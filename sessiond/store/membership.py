"""Lease of this server among the replicas on one database."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store import ownership, quotas, replicas, turns
from sessiond.store.database import Database
from sessiond.store.replicas import ReplicaId


class Membership:
    """Each method is one or a few transactions; a part of `Store`.

    Raises:
        StoreError: from every method, when the database fails.
    """

    def __init__(self, database: Database, replica: ReplicaId) -> None:
        self._database = database
        self._replica = replica

    async def register(self, now: float, expires_at: float) -> None:
        """Register this replica; sessions owned by an earlier run of the same name become free.

        The reservations of earlier runs, and of replicas whose lease has expired, are released.
        """

        async def work(connection: AsyncConnection) -> None:
            dead = await replicas.register(connection, self._replica, now, expires_at)
            dead += await replicas.bury(connection, now, expires_at - now)
            await quotas.release_of(connection, dead)

        await self._database.write(work)

    async def renew(self, now: float, expires_at: float, *, dead_by: float | None = None) -> int:
        """Renew the lease and fail the turns of dead replicas; returns the number of failed turns.

        What the turns had reserved is released. A replica is dead if its lease had expired at
        `dead_by` (None: now; 0: none had). If the last insert failed, a test write checks whether
        the database accepts rows again.
        """

        async def renew(connection: AsyncConnection) -> None:
            if not await replicas.renew(connection, self._replica, expires_at):
                await replicas.register(connection, self._replica, now, expires_at)

        async def bury(connection: AsyncConnection) -> int:
            expired_by = now if dead_by is None else dead_by
            dead = await replicas.bury(connection, expired_by, expires_at - now)
            if not dead:
                return 0
            failed = await turns.fail_running(connection, now)
            await quotas.release_of(connection, dead)
            return failed

        await self._database.write(renew)  # a transaction of its own, to avoid deadlocks
        failed = await self._database.write(bury)
        if self._database.failure is not None:
            await self._fill(full=True)
            await self._fill(full=False)
        return failed

    async def resign(self) -> None:
        """End the lease now, so that other replicas need not wait for its expiry."""

        async def resign(connection: AsyncConnection) -> None:
            await replicas.resign(connection, self._replica)
            await quotas.release_of(connection, [self._replica.id])

        await self._database.write(resign)

    async def taken(self, session_ids: Sequence[str]) -> list[str]:
        """The sessions that are closed or owned by another replica."""
        return await self._database.read(
            lambda connection: ownership.taken(connection, self._replica, session_ids)
        )

    async def _fill(self, *, full: bool) -> None:
        await self._database.write(
            lambda connection: replicas.fill(connection, self._replica, full=full), adds_rows=full
        )
