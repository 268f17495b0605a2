"""KV demand of running and waiting turns against the pool. Asyncio thread only.

`DrainRate` measures how fast turns end, for `Retry-After`.
"""

import logging
from collections import deque
from collections.abc import Callable
from math import ceil

from sessiond.errors import RequestError
from sessiond.sessions.limits import ServiceLimits

logger = logging.getLogger(__name__)

_REMEMBERED = 32
_LONGEST_S = 60
_REARM_AT = 0.9  # of the warning watermark; below it the warning is armed again


class DrainRate:
    """Rate at which turns end, without those that ended under pressure.

    `ticks` returns monotonic seconds.
    """

    def __init__(self, ticks: Callable[[], float]) -> None:
        self._ticks = ticks
        self._ends_s: deque[float] = deque(maxlen=_REMEMBERED)

    def ended(self) -> None:
        """Record the end of a turn."""
        self._ends_s.append(self._ticks())

    def retry_after_s(self, places: int = 1) -> int:
        """Seconds until `places` turns have ended, by the mean time between ends: 1 to 60."""
        if not self._ends_s:
            return 1
        mean_s = (self._ticks() - self._ends_s[0]) / len(self._ends_s)
        return min(max(ceil(mean_s * places), 1), _LONGEST_S)


class PoolDemand:
    """Context tokens of running and waiting turns.

    Idle sessions don't count, as they can be evicted. Crossing the warning watermark logs once
    until demand falls. A turn beyond the high watermark is refused, unless its user has no other
    turn: the demand of others must not keep a user out. `warnings` counts the warnings.
    """

    def __init__(self, limits: ServiceLimits, drain_rate: DrainRate) -> None:
        self._warn_at = limits.demand_warn_watermark
        self._high = limits.demand_high_watermark
        self._drain_rate = drain_rate
        self._tokens: dict[str, int] = {}
        self._users: dict[str, str | None] = {}  # of the same turns
        self._total = 0
        self._pool_tokens = 1
        self._is_armed = True
        self.warnings = 0

    @property
    def tokens(self) -> int:
        """Current demand in tokens."""
        return self._total

    @property
    def ratio(self) -> float:
        """Demand in pools; above 1, turns wait or are preempted."""
        return self._total / self._pool_tokens

    @property
    def is_high(self) -> bool:
        """Whether the high watermark is reached."""
        return bool(self._high) and self.ratio >= self._high

    @property
    def is_warning(self) -> bool:
        """Whether the warning is active."""
        return not self._is_armed

    def check(self, user_id: str | None) -> None:
        """Refuse a turn that `admit` would refuse however small it were; before it is planned.

        Raises:
            RequestError: the high watermark is reached.
        """
        self._check(1, user_id)

    @property
    def share(self) -> int | None:
        """Tokens of an equal share of the pool, for one more turn; None: memory is not short."""
        if self._is_armed:
            return None
        return int(self._warn_at * self._pool_tokens / (len(self._tokens) + 1))

    def admit(self, turn_id: str, tokens: int, *, user_id: str | None, pool_tokens: int) -> None:
        """Count a turn before its start, or after it was planned again.

        `user_id` None: a background turn.

        Raises:
            RequestError: it exceeds the high watermark; it is not counted.
        """
        self.leave(turn_id)
        self._pool_tokens = pool_tokens
        self._check(tokens, user_id)
        self._tokens[turn_id], self._users[turn_id] = 0, user_id
        self.grow(turn_id, tokens)

    def _check(self, tokens: int, user_id: str | None) -> None:
        most = self._high * self._pool_tokens
        is_above = bool(self._high and self._tokens) and self._total + tokens > most
        if is_above and (user_id is None or user_id in self._users.values()):
            excess = self._total + tokens - most
            need = tokens if tokens > 1 else "more"
            ends = ceil(excess * len(self._tokens) / max(1, self._total))
            raise RequestError(
                "queue_full",
                f"{len(self._tokens)} turns need {self._total} tokens of KV and this one {need}; "
                f"new turns are admitted up to {most:.0f} ({self._high:g} pools)",
                retry_after_s=self._drain_rate.retry_after_s(ends),
            )

    def grow(self, turn_id: str, tokens: int) -> None:
        """Update the demand of a turn that has grown."""
        if turn_id not in self._tokens:
            return
        self._tokens[turn_id] += tokens
        self._total += tokens
        if self._is_armed and self._warn_at and self.ratio >= self._warn_at:
            self._is_armed = False
            self.warnings += 1
            logger.warning(
                "memory pressure: %d turns need %d of the pool's %d tokens of KV (%.0f %%)%s",
                len(self._tokens),
                self._total,
                self._pool_tokens,
                100 * self.ratio,
                f"; above {self._high:g} pools new turns are refused" if self._high else "",
            )

    def leave(self, turn_id: str) -> None:
        """Remove a turn that has ended or never started."""
        self._total -= self._tokens.pop(turn_id, 0)
        self._users.pop(turn_id, None)
        if self.ratio < _REARM_AT * self._warn_at:
            self._is_armed = True
