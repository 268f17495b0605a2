"""Transactions on quotas, except those of turns."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.quota import Account
from sessiond.store import quotas, sessions
from sessiond.store.database import Database

_USERS_AT_ONCE = 200


class QuotaStore:
    """Limits, reservations and residency, those of volatile turns included.

    Raises:
        StoreError: from every method, when the database fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def account(self, user_id: str) -> Account:
        """A user's limits and usage; no limits and no usage for an unknown user."""
        return await self._database.read(lambda connection: quotas.account(connection, user_id))

    async def standing(self, user_id: str) -> Account:
        """As `account`, for admission: sessions are counted only if they are limited."""
        return await self._database.read(lambda connection: quotas.standing(connection, user_id))

    async def set_quota(self, user_id: str, limits: Mapping[str, Any], now: float) -> Account:
        """Replace the named limits; an unknown user is stored."""

        async def work(connection: AsyncConnection) -> Account:
            await sessions.ensure_user(connection, user_id, now)
            if limits:
                await quotas.change(connection, user_id, limits)
            return await quotas.account(connection, user_id)

        return await self._database.write(work)

    async def idle_forks(self, user_id: str) -> tuple[str, ...]:
        """Some open forks of a user in which no turn runs, least recently used first."""
        return await self._database.read(
            lambda connection: sessions.idle_forks(connection, user_id)
        )

    async def renew_reservations(self, turn_ids: Sequence[str], expires_at: float) -> None:
        """Renew the reservations of running turns."""
        await self._database.write(
            lambda connection: quotas.renew(connection, turn_ids, expires_at)
        )

    async def reap_reservations(self, now: float, reservation_s: float = 30.0) -> int:
        """Release the reservations of dead servers; returns their number."""
        return await self._database.write(
            lambda connection: quotas.reap(connection, now, reservation_s)
        )

    async def add_residency(self, byte_seconds: Mapping[str, float]) -> None:
        """Add KV byte-seconds by user, in short transactions, so that turns don't wait."""
        users = sorted(byte_seconds)
        for start in range(0, len(users), _USERS_AT_ONCE):
            some = {one: byte_seconds[one] for one in users[start : start + _USERS_AT_ONCE]}
            await self._database.write(partial(quotas.add_residency, byte_seconds=some))
