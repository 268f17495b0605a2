"""The stored report of a ramp, against which a later run can be checked. Pure."""

from collections.abc import Sequence

import msgspec

from sessiond.capacity.knee import Expected, Knee, instances_for, predict
from sessiond.capacity.stages import LoadStage

CLOSE = 0.15  # tolerance of a correct prediction, relative
_AROUND_KNEE = (0.8, 1.2)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a ramp. `load` describes the behaviour of each user."""

    model: str
    load: str
    stages: Sequence[LoadStage]
    knee: Knee


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a second run with the first run's prediction."""

    expected: Expected
    found: LoadStage
    holds: bool


def check(report: Report, found: Sequence[LoadStage]) -> list[Check]:
    """Compare a second run's stages with the report: throughput must be within 15 %."""
    checks = []
    for stage in found:
        expected = predict(report.stages, stage.users)
        apart = abs(stage.tokens_per_s - expected.tokens_per_s)
        holds = apart <= CLOSE * expected.tokens_per_s and not stage.lost
        checks.append(Check(expected=expected, found=stage, holds=holds))
    return checks


def users_around(knee: Knee) -> list[int]:
    """Return 80 and 120 % of the knee, the users at which a prediction is checked."""
    return sorted({max(1, round(share * knee.users)) for share in _AROUND_KNEE})


def ramp(most_users: int, stages: int) -> list[int]:
    """Return evenly spaced numbers of users up to `most_users`, without duplicates."""
    return sorted({max(1, round(most_users * step / stages)) for step in range(1, stages + 1)})


def answer(report: Report, users: int | None) -> list[str]:
    """Summarise the report in sentences."""
    knee = report.knee
    if knee.length_tokens is not None:
        most = f"{knee.length_tokens}{'' if knee.found else ' or more'}"
        return [f"longest conversations of {knee.users} users: {most} tokens ({knee.reason})"]
    lines = [
        f"sessions per instance: {knee.users}{'' if knee.found else ' or more'} ({knee.reason})"
    ]
    if users is not None and knee.users:
        count = instances_for(users, knee)
        noun = "instance" if count == 1 else "instances"
        bound = "" if knee.found else "at most "
        lines.append(f"{users} users with 25 % reserve: {bound}{count} {noun}")
    return lines
