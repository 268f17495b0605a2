"""Quotas of users: cached limits, early refusals, reservations, residency. Asyncio thread only.

`ResidencyMeter` charges users for the time that their KV stays on the device.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from engine.ids import SessionId
from engine.ipc.client import EngineClient
from engine.ipc.messages import Terms
from engine.ipc.queries import GetResidency, Residency
from sessiond.domain import Caller
from sessiond.errors import RequestError
from sessiond.quota import (
    PRIORITIES,
    Account,
    PriorityName,
    Quota,
    Wanted,
    rate_headers,
    refusal,
)
from sessiond.sessions.demand import DrainRate
from sessiond.sessions.expiry_clock import ExpiryClock
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.live_session import LiveSession
from sessiond.sessions.queries import ask_in_time
from sessiond.sessions.starting import StartingTurns, UserStarts
from sessiond.store.errors import QuotaExceededError
from sessiond.store.records import NewPrompt, NewReservation, NewSession
from sessiond.store.store import Store

logger = logging.getLogger(__name__)

_AT_A_TIME = 256  # sessions per query, to bound the time in the engine and in this loop
_MAX_KNOWN_USERS = 10_000
_RENEWALS = 3  # per reservation lifetime, so that one failure does not lose it

CloseIdleFork = Callable[[Caller, SessionId | None], Awaitable[bool]]


class ResidencyMeter:
    """Samples all sessions every `residency_every_s`, in batches.

    The bytes that a session holds are charged for the whole time since the previous sample.
    """

    def __init__(
        self,
        *,
        engine: EngineClient,
        store: Store,
        sessions: LiveSessions,
        limits: ServiceLimits,
        ticks: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._accounts = store.quotas
        self._sessions = sessions
        self._limits = limits
        self._ticks = ticks
        self._looked_at = ticks()
        self._timer: asyncio.Task[None] | None = None

    @property
    def looked_at(self) -> float:
        """When it was looked last, in seconds of `ticks`."""
        return self._looked_at

    def start(self) -> None:
        """Start sampling."""
        self._timer = asyncio.create_task(self._sample_always())

    async def stop(self) -> None:
        """Stop sampling."""
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    async def sample(self) -> None:
        """Charge the bytes held now for the time since the last sample, if it is due."""
        ticks = self._ticks()
        since_s = ticks - self._looked_at
        if since_s < self._limits.residency_every_s:
            return
        self._looked_at = ticks
        byte_seconds: defaultdict[str, float] = defaultdict(float)
        # a stopped engine holds nothing; a hanging one is queried again at the next sample
        with contextlib.suppress(RequestError):
            await self._sample_all(since_s, byte_seconds)
        if byte_seconds:
            await self._accounts.add_residency(byte_seconds)

    async def _sample_all(self, since_s: float, byte_seconds: defaultdict[str, float]) -> None:
        lives = tuple(self._sessions)
        for start in range(0, len(lives), _AT_A_TIME):
            if not self._engine.available:
                return
            held = await self._held(lives[start : start + _AT_A_TIME])
            for session, kv_bytes in held.items():
                live = self._sessions.get(session)
                if live is not None:
                    byte_seconds[live.user_id] += kv_bytes * since_s
            await asyncio.sleep(0)

    async def _held(self, lives: Sequence[LiveSession]) -> dict[SessionId, float]:
        epoch = self._engine.epoch
        wanted = [live.id for live in lives if live.stored and live.is_resident(epoch)]
        held: dict[SessionId, float] = {}
        while wanted:
            query = GetResidency(sessions=tuple(wanted))
            answer = await ask_in_time(self._engine, query, self._limits.ask_timeout_s)
            if not isinstance(answer, Residency):
                raise TypeError(answer)
            held |= answer.kv_bytes
            wanted = wanted[answer.looked_at :]
        return held

    async def _sample_always(self) -> None:
        while True:
            await asyncio.sleep(self._limits.reap_every_s)
            try:
                await self.sample()
            except Exception:
                logger.exception("residency could not be measured; it is retried")


class _Known(NamedTuple):
    quota: Quota
    read_at: float


class Quotas:
    """Checks quotas early, renews reservations and reaps expired ones.

    Cached limits live for `quota_fresh_s` and serve early checks only: SQL decides. `on_refused`
    is called with the limit's name for each refused request. `close_idle_fork` closes an idle fork
    of the user, if there is one, to make room for a new session.
    """

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        store: Store,
        limits: ServiceLimits,
        clock: Callable[[], float],
        ticks: Callable[[], float],
        drain_rate: DrainRate,
        residency: ResidencyMeter,
        close_idle_fork: CloseIdleFork,
        on_refused: Callable[[str], None],
    ) -> None:
        self._store, self._accounts = store, store.quotas
        self._limits = limits
        self._clock = clock
        self._ticks = ticks
        self._dead_by = ExpiryClock(clock, ticks, settle_s=limits.reservation_s)
        self._drain_rate = drain_rate
        self._close_idle_fork = close_idle_fork
        self._on_refused = on_refused
        self._known: OrderedDict[str, _Known] = OrderedDict()  # last read last
        self._renewed_at = ticks()
        self._starting = StartingTurns()
        self._residency = residency
        self._timer: asyncio.Task[None] | None = None

    @property
    def residency(self) -> ResidencyMeter:
        """What charges for the time that KV lies on the device."""
        return self._residency

    def start(self, running: Callable[[], Sequence[str]]) -> None:
        """Start to renew the reservations of `running` turns (ids) and to meter residency."""
        self._timer = asyncio.create_task(self._renew_always(running))
        self._residency.start()

    async def stop(self) -> None:
        """Stop the timers."""
        await self._residency.stop()
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    # --- limits ----------------------------------------------------------------------------------

    async def of(self, user_id: str) -> Quota:
        """A user's limits, at most `quota_fresh_s` old."""
        known = self._known.get(user_id)
        if known is None or self._ticks() - known.read_at >= self._limits.quota_fresh_s:
            return (await self._standing(user_id)).quota
        return known.quota

    async def account(self, user_id: str) -> Account:
        """A user's current limits and usage."""
        account = await self._accounts.account(user_id)
        self._remember(user_id, account.quota)
        return account.at(self._clock())

    async def _standing(self, user_id: str) -> Account:
        """As `account`, but only the usage that limits need."""
        account = await self._accounts.standing(user_id)
        self._remember(user_id, account.quota)
        return account.at(self._clock())

    async def set(self, caller: Caller, user_id: str, limits: Mapping[str, Any]) -> Account:
        """Replace the named limits from the next turn on.

        Raises:
            RequestError: the caller is no admin.
        """
        if not caller.is_admin:
            raise RequestError("permission_denied", "only an admin may change quotas")
        account = await self._accounts.set_quota(user_id, limits, self._clock())
        self._remember(user_id, account.quota)
        return account.at(self._clock())

    def _remember(self, user_id: str, quota: Quota) -> None:
        self._known[user_id] = _Known(quota, self._ticks())
        self._known.move_to_end(user_id)
        if len(self._known) > _MAX_KNOWN_USERS:
            self._known.popitem(last=False)

    # --- turns -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def starting(
        self, caller: Caller, *, opens: bool, base: SessionId | None = None
    ) -> AsyncIterator["StartingTurn"]:
        """Refuse, before any work, a turn that no quota is left for, however small it is.

        Until commit 1 the turn counts in the checks of others. `opens`: it opens a session, a fork
        of `base` if given.

        Raises:
            RequestError: a limit is reached.
        """
        wanted = Wanted(sessions=int(opens))
        if not (await self.of(caller.user_id)).is_counted:
            yield StartingTurn(self, None, caller.user_id, wanted)
            return
        with self._starting.of(caller.user_id) as starts:
            async with starts.lock:
                await self._check(caller, wanted, base, starts)
                turn = StartingTurn(self, starts, caller.user_id, wanted)
            try:
                yield turn
            finally:
                turn.leave()

    async def check_reservation(self, user_id: str, starts: UserStarts, wanted: Wanted) -> None:
        """Refuse a turn of known size that its user's quota has no room for.

        The database is asked only if the account as known has none.

        Raises:
            RequestError: a limit is reached.
        """
        if refusal(starts.account, wanted, self._clock()) is None:
            return
        starts.account = await self._standing(user_id)
        if refusal(starts.account, wanted, self._clock()) is not None:
            raise self._refuse(starts.account, wanted)

    async def create_session(
        self,
        caller: Caller,
        session: NewSession,
        prompt: NewPrompt | None,
        base: SessionId | None = None,
    ) -> None:
        """Store a session without a turn. `base`: its parent, which is not closed to make room.

        Raises:
            RequestError: the user's quota of open sessions is used up.
        """
        await self._check(caller, Wanted(tokens=0, turns=0, sessions=1), base)
        try:
            await self._store.create_session(session, prompt)
        except QuotaExceededError as error:
            raise self.refused(error) from error

    async def _check(
        self,
        caller: Caller,
        wanted: Wanted,
        base: SessionId | None,
        starts: UserStarts | None = None,
    ) -> None:
        if not (await self.of(caller.user_id)).is_counted:
            return
        account = await self._standing(caller.user_id)
        if starts is not None:
            starts.account, account = account, starts.with_starting(account)
        found = refusal(account, wanted, self._clock())
        if found is None:
            return
        only_sessions = refusal(account, replace(wanted, sessions=0), self._clock()) is None
        if not (only_sessions and await self._close_idle_fork(caller, base)):
            raise self._refuse(account, wanted)

    def reservation(self, turn_id: str, tokens: int) -> NewReservation:
        """The reservation of a turn, made before it is submitted."""
        now = self._clock()
        expires_at = now + self._limits.reservation_s
        return NewReservation(turn_id=turn_id, tokens=tokens, now=now, expires_at=expires_at)

    def refused(self, error: QuotaExceededError) -> RequestError:
        """The error for a failed reservation."""
        return self._refuse(error.account, error.wanted)

    def _refuse(self, account: Account, wanted: Wanted) -> RequestError:
        now = self._clock()
        found = refusal(account, wanted, now, self._drain_s)
        if found is None:  # the quota has become free since
            return RequestError(
                "rate_limit_exceeded",
                "the quota was exhausted and is free again; try again",
                retry_after_s=1,
            )
        self._on_refused(found.reason)
        return RequestError(
            found.code,
            found.message,
            retry_after_s=found.retry_after_s,
            headers=rate_headers(account, now, self._drain_s),
        )

    async def headers(self, user_id: str) -> dict[str, str]:
        """Current `x-ratelimit-*` headers; none for a user without limits."""
        if not (await self.of(user_id)).is_counted:
            return {}
        return self.headers_of(await self._standing(user_id))

    def headers_of(self, account: Account) -> dict[str, str]:
        """`x-ratelimit-*` headers of an account."""
        return rate_headers(account, self._clock(), self._drain_s)

    @property
    def _drain_s(self) -> int:
        return self._drain_rate.retry_after_s()

    # --- timers ----------------------------------------------------------------------------------

    async def _renew_always(self, running: Callable[[], Sequence[str]]) -> None:
        while True:
            await asyncio.sleep(self._limits.reap_every_s)
            try:
                await self.tend(running())
            except Exception:
                logger.exception("quota reservations could not be renewed; it is retried")

    async def tend(self, turn_ids: Sequence[str]) -> None:
        """Renew the reservations of running turns and reap expired ones."""
        ticks, reservation_s = self._ticks(), self._limits.reservation_s
        if ticks - self._renewed_at >= reservation_s / _RENEWALS:
            self._renewed_at = ticks
            if turn_ids:
                expires_at = self._clock() + reservation_s
                await self._accounts.renew_reservations(turn_ids, expires_at)
            await self._accounts.reap_reservations(self._dead_by(), reservation_s)


class StartingTurn:
    """A turn between the check of its user's quota and commit 1. `starts` None: no limits."""

    def __init__(
        self, quotas: Quotas, starts: UserStarts | None, user_id: str, wanted: Wanted
    ) -> None:
        self._quotas = quotas
        self._starts = starts
        self._user_id = user_id
        self._wanted = wanted
        self._is_counted = starts is not None
        if starts is not None:
            starts.add(wanted)

    async def commit(self, tokens: int, store: Callable[[], Awaitable[Account]]) -> Account:
        """Make commit 1 by `store`, unless its worst case of `tokens` is certain to be refused.

        Raises:
            RequestError: a limit is reached; or what `store` raises.
        """
        if self._starts is None:
            return await store()
        async with self._starts.lock:
            wanted = replace(self._wanted, tokens=tokens)
            await self._quotas.check_reservation(self._user_id, self._starts, wanted)
            account = self._starts.account = await store()
            self.leave()
            return account

    def leave(self) -> None:
        """Count the turn no more: it is stored, or refused."""
        if self._starts is not None and self._is_counted:
            self._is_counted = False
            self._starts.remove(self._wanted)


def terms_of(quota: Quota, live: LiveSession, wanted: PriorityName | None) -> Terms:
    """The engine's terms for a turn; `wanted` None: the session's priority."""
    return Terms(
        weight=quota.weight,
        priority=PRIORITIES.index(quota.allowed(wanted or live.hints.priority)),
        max_blocks=quota.max_resident_blocks,
        max_host_bytes=quota.max_host_bytes,
        max_disk_bytes=quota.max_disk_bytes,
    )
