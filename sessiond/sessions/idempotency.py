"""Idempotency: a repeated request with the same key gets the first result."""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from sessiond.domain import UNSET, Caller, TurnRequest
from sessiond.errors import RequestError
from sessiond.sessions.expiry_clock import ExpiryClock
from sessiond.store.records import UsedKey
from sessiond.store.store import Store

_REAP_EVERY_S = 600.0


class IdempotentRequests:
    """A key is claimed before the request runs and released if the request fails."""

    def __init__(
        self,
        *,
        store: Store,
        ttl_s: float,
        clock: Callable[[], float],
        ticks: Callable[[], float],
    ) -> None:
        self._used_keys = store.used_keys
        self._clock = clock
        self._ttl_s = ttl_s
        self._ticks = ticks
        self._ended_by = ExpiryClock(clock, ticks, settle_s=self._ttl_s)
        self._next_reap_s = 0.0

    async def find(
        self, caller: Caller, key: str, digest: str, is_there: Callable[[str], Awaitable[bool]]
    ) -> str | None:
        """The id of the same request's result; None: there is none, and the key is free.

        Raises:
            RequestError: the key was used for another request.
        """
        used = await self._used_keys.find(caller.user_id, key, self._ended_by() - self._ttl_s)
        if used is None:
            await self._used_keys.forget(self._ended_by() - self._ttl_s)
            return None
        if used.digest != digest:
            raise RequestError(
                "idempotency_conflict",
                "the idempotency key must be new (it was used for another request)",
                param="idempotency_key",
            )
        if await is_there(used.result_id):
            return used.result_id
        await self.release(caller, key, used.result_id)
        return None

    async def claim(self, caller: Caller, key: str, digest: str, result_id: str) -> bool:
        """Claim the key for the request; False: a concurrent request has it."""
        used = UsedKey(digest=digest, result_id=result_id)
        return await self._used_keys.claim(caller.user_id, key, used, self._clock())

    async def release(self, caller: Caller, key: str, result_id: str) -> None:
        """Release the key of a failed request."""
        await self._used_keys.release(caller.user_id, key, result_id)

    async def reap(self) -> None:
        """Delete expired keys."""
        ticks = self._ticks()
        if ticks >= self._next_reap_s:
            self._next_reap_s = ticks + _REAP_EVERY_S
            await self._used_keys.forget(self._ended_by() - self._ttl_s)


def digest_of(kind: str, *parts: Any) -> str:
    """A digest that is equal for equal requests."""
    encoded = msgspec.json.encode([kind, *parts], order="deterministic")
    return hashlib.sha256(encoded).hexdigest()


def turn_digest(request: TurnRequest) -> str:
    """The digest of a turn's request. Absent and null instructions differ."""
    return digest_of("turn", request, request.instructions is UNSET)
