"""Pass criteria of a load test. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

EVENTS = ("ttft_cold", "ttft_warm", "itl", "turn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper limits. `p95_ms` by event: ttft_cold, ttft_warm, itl, turn."""

    lost: int = 0
    failed_share: float = 0.01
    p95_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Results: tries shed by the server count in `refused`, not as failures."""

    turns: int
    failed: int
    lost: int
    refused: int
    p95_ms: Mapping[str, float]


def broken_limits(totals: Totals, limits: Limits) -> list[str]:
    """A message for each exceeded limit; none if the test passed.

    A test in which no turn ended does not pass.
    """
    broken: list[str] = []
    if not totals.turns:
        broken.append("no turn ended")
    if totals.lost > limits.lost:
        broken.append(f"lost conversations must be at most {limits.lost} (got {totals.lost})")
    failed = totals.failed / max(1, totals.turns)
    if failed > limits.failed_share:
        broken.append(f"failed turns must be at most {limits.failed_share:.1%} (got {failed:.1%})")
    for event, most in limits.p95_ms.items():
        found = totals.p95_ms.get(event, math.nan)
        if not found <= most:
            broken.append(f"p95 of {event} must be at most {most:.0f} ms (got {found:.0f} ms)")
    return broken


def parse_p95(items: Iterable[str]) -> dict[str, float]:
    """Read `EVENT=MS` limits.

    Raises:
        ValueError: names the limit and the expected form.
    """
    limits: dict[str, float] = {}
    for item in items:
        event, _, text = item.partition("=")
        if event not in EVENTS or not text.replace(".", "", 1).isdigit():
            raise ValueError(
                f"p95 must be EVENT=MS with EVENT one of {', '.join(EVENTS)} (got {item!r})"
            )
        limits[event] = float(text)
    return limits
