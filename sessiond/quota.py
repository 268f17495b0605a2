"""Quotas: limits of a user, its usage, refusals and rate limit headers. Pure.

Tokens are counted in fixed windows: minutes and days of UTC. A turn reserves its worst case in
the windows in which it begins; its end refunds the unused part to them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import ceil
from typing import Literal, NamedTuple, get_args

from sessiond.domain import TurnError, TurnUsage
from sessiond.errors import ErrorCode

MINUTE_S = 60
DAY_S = 86_400
PRIORITIES: tuple["PriorityName", ...] = ("low", "normal", "high")
"""From lowest to highest."""

PriorityName = Literal["low", "normal", "high"]
QuotaReason = Literal["max_concurrent_turns", "tokens_per_minute", "tokens_per_day", "max_sessions"]
QUOTA_REASONS: tuple[QuotaReason, ...] = get_args(QuotaReason)
_CODES: Mapping[QuotaReason, ErrorCode] = {
    "max_concurrent_turns": "rate_limit_exceeded",
    "tokens_per_minute": "rate_limit_exceeded",
    "tokens_per_day": "quota_exceeded",
    "max_sessions": "quota_exceeded",
}
_FAULTS = frozenset({"internal_error", "engine_restarted"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits of one user; None is no limit. `weight`: its share relative to weight 1."""

    max_sessions: int | None = None
    max_concurrent_turns: int | None = None
    max_resident_blocks: int | None = None
    max_host_bytes: int | None = None
    max_disk_bytes: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    max_context_tokens: int | None = None
    max_priority: PriorityName | None = None
    weight: float = 1.0

    @property
    def context_caps(self) -> dict[str, int]:
        """The limits on a context including its reply, by display name.

        Token windows are included: after a loss of KV a turn is charged for its whole context.
        """
        names = ("max_context_tokens", "tokens_per_minute", "tokens_per_day")
        limits = {f"the quota's {name}": getattr(self, name) for name in names}
        return {name: limit for name, limit in limits.items() if limit is not None}

    @property
    def is_counted(self) -> bool:
        """Whether any limit needs counters in SQL."""
        return any(getattr(self, reason) is not None for reason in QUOTA_REASONS)

    def allowed(self, wanted: PriorityName) -> PriorityName:
        """The requested priority, capped at the user's maximum."""
        most = self.max_priority or PRIORITIES[-1]
        return min(wanted, most, key=PRIORITIES.index)


RATE_HEADERS = tuple(
    f"x-ratelimit-{what}-{counted}"
    for counted in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)
QUOTA_FIELDS = tuple(field.name for field in fields(Quota))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """Usage of a user. Window tokens are those used or reserved in that window.

    `minute_start` and `day_start` in unix seconds; `total_tokens`: used by all ended turns;
    `byte_seconds`: KV bytes on the device, integrated over time.
    """

    sessions: int = 0
    turns: int = 0
    minute_start: int = 0
    minute_tokens: int = 0
    day_start: int = 0
    day_tokens: int = 0
    total_tokens: int = 0
    byte_seconds: float = 0.0

    def at(self, now: float) -> "QuotaUse":
        """The usage in the windows of `now`; usage in earlier windows is dropped.

        A window that another server's clock has just opened counts as current; one further ahead
        was opened by a wrong clock and is dropped.
        """
        minute, day = windows_at(now)
        is_minute = minute <= self.minute_start <= minute + MINUTE_S
        is_day = day <= self.day_start <= day + DAY_S
        return QuotaUse(
            sessions=self.sessions,
            turns=self.turns,
            minute_start=self.minute_start if is_minute else minute,
            minute_tokens=self.minute_tokens if is_minute else 0,
            day_start=self.day_start if is_day else day,
            day_tokens=self.day_tokens if is_day else 0,
            total_tokens=self.total_tokens,
            byte_seconds=self.byte_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user's limits and usage."""

    quota: Quota
    use: QuotaUse

    def at(self, now: float) -> "Account":
        """The account with its usage in the windows of `now`."""
        return Account(quota=self.quota, use=self.use.at(now))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Amounts that a request needs. `tokens`: its worst case, or 1 while unknown."""

    tokens: int = 1
    turns: int = 1
    sessions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRefusal:
    """Why a request exceeds a quota. `retry_after_s` None: waiting does not help, or is unknown."""

    reason: QuotaReason
    code: ErrorCode
    message: str
    retry_after_s: int | None


class Windows(NamedTuple):
    """Start of the current minute and day, in unix seconds."""

    minute: int
    day: int


def windows_at(now: float) -> Windows:
    """The windows that contain `now`."""
    seconds = int(now // 1)
    return Windows(seconds - seconds % MINUTE_S, seconds - seconds % DAY_S)


def charged_tokens(usage: TurnUsage, error: TurnError | None = None) -> int:
    """Tokens charged for a turn: computed and generated ones; after a server fault no output."""
    computed = usage.recomputed_tokens + usage.new_tokens
    faulted = error is not None and error.code in _FAULTS
    return computed if faulted else computed + usage.output_tokens


def refusal(account: Account, wanted: Wanted, now: float, drain_s: int = 1) -> QuotaRefusal | None:
    """The exceeded limit with the longest wait; None when no limit is exceeded.

    `drain_s`: expected seconds until a running turn ends.
    """
    found = [
        *_exceeded_counts(account, wanted, drain_s),
        *_exceeded_windows(account, wanted, now),
    ]
    return max(found, key=_wait_of, default=None)


def _exceeded_counts(account: Account, wanted: Wanted, drain_s: int) -> list[QuotaRefusal]:
    quota, use = account.quota, account.use
    found = []
    if wanted.sessions and _over(use.sessions + wanted.sessions, quota.max_sessions):
        message = f"{use.sessions} sessions are open, and max_sessions is {quota.max_sessions}"
        found.append(_refusal("max_sessions", f"{message}: close one first", None))
    if wanted.turns and _over(use.turns + wanted.turns, quota.max_concurrent_turns):
        most = quota.max_concurrent_turns
        message = f"{use.turns} turns run, and max_concurrent_turns is {most}"
        found.append(_refusal("max_concurrent_turns", message, drain_s))
    return found


def _exceeded_windows(account: Account, wanted: Wanted, now: float) -> list[QuotaRefusal]:
    quota, use = account.quota, account.use.at(now)
    found = []
    windows: tuple[tuple[QuotaReason, int, int | None, int], ...] = (
        (
            "tokens_per_minute",
            use.minute_tokens,
            quota.tokens_per_minute,
            use.minute_start + MINUTE_S,
        ),
        ("tokens_per_day", use.day_tokens, quota.tokens_per_day, use.day_start + DAY_S),
    )
    for reason, used, limit, end in windows:
        if limit is None or used + wanted.tokens <= limit:
            continue
        if wanted.tokens > limit:
            message = f"the turn may use {wanted.tokens} tokens, and {reason} is {limit}"
            found.append(_refusal(reason, message, None))
        else:
            message = f"{used} of the {limit} tokens of {reason} are used"
            if wanted.tokens > 1:
                message += f", and the turn may use {wanted.tokens}"
            found.append(_refusal(reason, message, wait_s(end, now)))
    return found


def wait_s(until: float, now: float) -> int:
    """Whole seconds from `now` to `until`, rounded up, at least 1."""
    return max(1, ceil(until - now))


def rate_headers(account: Account, now: float, drain_s: int = 1) -> dict[str, str]:
    """`x-ratelimit-*` headers of OpenAI's clients; unlimited quantities are omitted.

    Requests count concurrent turns. Tokens are those of the window with fewer left.
    """
    quota, use = account.quota, account.use.at(now)
    headers: dict[str, str] = {}
    if quota.max_concurrent_turns is not None:
        left = max(0, quota.max_concurrent_turns - use.turns)
        headers |= _headers("requests", quota.max_concurrent_turns, left, 0 if left else drain_s)
    windows = [
        (max(0, limit - used), limit, wait_s(end, now) if used else 0)
        for limit, used, end in (
            (quota.tokens_per_minute, use.minute_tokens, use.minute_start + MINUTE_S),
            (quota.tokens_per_day, use.day_tokens, use.day_start + DAY_S),
        )
        if limit is not None
    ]
    if windows:
        left, limit, reset_s = min(windows)
        headers |= _headers("tokens", limit, left, reset_s)
    return headers


def _headers(what: str, limit: int, left: int, reset_s: int) -> dict[str, str]:
    names = [name for name in RATE_HEADERS if name.endswith(f"-{what}")]
    return dict(zip(names, (str(limit), str(left), f"{reset_s}s"), strict=True))


def _over(wanted: int, limit: int | None) -> bool:
    return limit is not None and wanted > limit


def _refusal(reason: QuotaReason, message: str, retry_after_s: int | None) -> QuotaRefusal:
    return QuotaRefusal(
        reason=reason, code=_CODES[reason], message=message, retry_after_s=retry_after_s
    )


def _wait_of(found: QuotaRefusal) -> float:
    return float("inf") if found.retry_after_s is None else found.retry_after_s
