"""Retries of a well-behaved client after a failed turn. Pure.

A client that gives up at once relieves a weak server and makes it look fast. Therefore a shed turn
is retried, its latency counts from the first try, and giving up a turn loses its conversation.
"""

from dataclasses import dataclass

# Codes after which a retry may succeed: the server sheds load, or the connection was lost.
PASSING = frozenset(
    {
        "cut",
        "draining",
        "engine_restarted",
        "internal_error",
        "queue_full",
        "queue_timeout",
        "quota_exceeded",
        "rate_limit_exceeded",
        "turn_in_progress",
    }
)
SHED = frozenset({"draining", "queue_full", "queue_timeout", "rate_limit_exceeded", "overload"})
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """Seconds during which one turn is retried."""

    seconds: float = 60.0


def wait_before_retry(
    code: str, tries: int, elapsed_s: float, retry_after_s: float | None, retry_budget: RetryBudget
) -> float | None:
    """Seconds to wait after the `tries`-th try failed with `code`; None: give up."""
    if code not in PASSING:
        return None
    wait_s = min(_FIRST_WAIT_S * 2 ** (tries - 1), _LONGEST_WAIT_S)
    wait_s = max(wait_s, retry_after_s or 0.0)
    return wait_s if elapsed_s + wait_s <= retry_budget.seconds else None
