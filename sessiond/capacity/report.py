"""A ramp's report: what is kept of it, as a file that a later run is checked against. Pure."""

from collections.abc import Sequence

import msgspec

from sessiond.capacity.knee import Expected, Knee, instances_for, predict
from sessiond.capacity.stages import Stage

CLOSE = 0.15  # a prediction is right within this share
_AROUND_KNEE = (0.8, 1.2)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a ramp found. `load` says in words what each user did."""

    model: str
    load: str
    stages: Sequence[Stage]
    knee: Knee


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a second run beside what the first predicted."""

    expected: Expected
    found: Stage
    holds: bool


def check(report: Report, found: Sequence[Stage]) -> list[Check]:
    """Compare a second run's stages with the report: throughput within 15 %."""
    checks = []
    for stage in found:
        expected = predict(report.stages, stage.users)
        apart = abs(stage.tokens_per_s - expected.tokens_per_s)
        holds = apart <= CLOSE * expected.tokens_per_s and not stage.lost
        checks.append(Check(expected=expected, found=stage, holds=holds))
    return checks


def users_around(knee: Knee) -> list[int]:
    """Where a prediction is checked: 80 and 120 % of the knee; once where these are the same."""
    return sorted({max(1, round(share * knee.users)) for share in _AROUND_KNEE})


def ramp(most_users: int, stages: int) -> list[int]:
    """Numbers of users, evenly up to the most, no number twice."""
    return sorted({max(1, round(most_users * step / stages)) for step in range(1, stages + 1)})


def answer(report: Report, users: int | None) -> list[str]:
    """What a planner wants to know, in sentences."""
    knee = report.knee
    lines = [
        f"sessions per instance: {knee.users}{'' if knee.found else ' or more'} ({knee.reason})"
    ]
    if users is not None and knee.users:
        count = instances_for(users, knee)
        noun = "instance" if count == 1 else "instances"
        bound = "" if knee.found else "at most "
        lines.append(f"{users} users with 25 % reserve: {bound}{count} {noun}")
    return lines
