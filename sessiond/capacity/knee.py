"""Finds the knee of a ramp, sizes fleets, and predicts other numbers of users. Pure."""

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from sessiond.capacity.stages import LoadStage

RESERVE = 0.25
_NEARLY_ALL = 0.9  # of the highest throughput
_ENDED = "the ramp ended before a limit was reached"
_FEW_REFUSALS = 0.01  # of the turns


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """The most users that a server supports, and the reason. `found`: the ramp reached a limit.

    `length_tokens`: of a ramp of lengths, the longest conversations of these users; else None.
    """

    users: int
    reason: str
    found: bool
    length_tokens: int | None = None


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction for a number of users, interpolated linearly between stages."""

    users: int
    tokens_per_s: float
    ttft_warm_p50_s: float | None


def find_knee(stages: Sequence[LoadStage], ttft_limit_s: float | None = None) -> Knee:
    """Return the most users of a stage before a limit is reached.

    The limits: conversations are lost, turns refused or running turns preempted; the p95 of warm
    TTFT exceeds `ttft_limit_s`; or throughput saturates, so that more users add less than a tenth.

    Raises:
        ValueError: there is no stage.
    """
    if not stages:
        raise ValueError("stages must be one or more (got none)")
    ordered = sorted(stages, key=lambda stage: stage.users)
    knees = [_broken(ordered, ttft_limit_s), _saturated(ordered)]
    found = [knee for knee in knees if knee is not None]
    if not found:
        return Knee(users=ordered[-1].users, reason=_ENDED, found=False)
    return min(found, key=lambda knee: knee.users)


def find_longest(stages: Sequence[LoadStage], ttft_limit_s: float | None = None) -> Knee:
    """Return the longest conversations of a ramp of lengths before a limit is reached.

    The limits are those of `find_knee`, without saturation: longer prompts always cost throughput.

    Raises:
        ValueError: there is no stage.
    """
    if not stages:
        raise ValueError("stages must be one or more (got none)")
    ordered = sorted(stages, key=lambda stage: stage.length_tokens)
    users, supported = ordered[0].users, 0
    for stage in ordered:
        limit = _knee_reason(stage, ttft_limit_s)
        if limit is not None:
            reason = f"at {stage.length_tokens} tokens {limit}"
            return Knee(users=users, reason=reason, found=True, length_tokens=supported)
        supported = stage.length_tokens
    return Knee(users=users, reason=_ENDED, found=False, length_tokens=supported)


def _broken(ordered: Sequence[LoadStage], ttft_limit_s: float | None) -> Knee | None:
    supported = 0
    for stage in ordered:
        reason = _knee_reason(stage, ttft_limit_s)
        if reason is not None:
            return Knee(users=supported, reason=f"at {stage.users} users {reason}", found=True)
        supported = stage.users
    return None


def _knee_reason(stage: LoadStage, ttft_limit_s: float | None) -> str | None:
    late_s = stage.ttft_warm_p95_s
    if stage.lost:
        return f"{stage.lost} conversations were lost"
    if stage.refusals > _FEW_REFUSALS * stage.turns_per_s * stage.seconds:
        return f"turns were refused {stage.refusals} times"
    if stage.preemptions:
        return f"running turns were preempted {stage.preemptions:.0f} times"
    if ttft_limit_s is not None and late_s is not None and late_s > ttft_limit_s:
        return f"the p95 of warm TTFT was {late_s:.2f} s"
    return None


def _saturated(ordered: Sequence[LoadStage]) -> Knee | None:
    most = max(stage.tokens_per_s for stage in ordered)
    knee = next(stage for stage in ordered if stage.tokens_per_s >= _NEARLY_ALL * most)
    if knee is ordered[-1]:
        return None
    reason = f"throughput saturates above {knee.users} users: the maximum is {most:.0f} tokens/s"
    return Knee(users=knee.users, reason=reason, found=True)


def instances_for(users: int, knee: Knee, reserve: float = RESERVE) -> int:
    """Return the servers for a number of concurrent users, with a share of reserve on top.

    Raises:
        ValueError: the server supports no user.
    """
    if knee.users < 1:
        raise ValueError("the knee must be 1 user or more (got 0): no number of servers is enough")
    return math.ceil(users * (1 + reserve) / knee.users)


def predict(stages: Sequence[LoadStage], users: int) -> Expected:
    """Interpolate the curves at a number of users; outside the ramp they are constant.

    Below the first stage throughput is proportional to the users.
    """
    ordered = sorted(stages, key=lambda stage: stage.users)
    tokens = [(0, 0.0), *((stage.users, stage.tokens_per_s) for stage in ordered)]
    first = [(s.users, s.ttft_warm_p50_s) for s in ordered if s.ttft_warm_p50_s is not None]
    return Expected(
        users=users,
        tokens_per_s=_at(users, tokens) or 0.0,
        ttft_warm_p50_s=_at(users, first),
    )


def _at(users: int, points: Sequence[tuple[int, float]]) -> float | None:
    if not points:
        return None
    if users <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if users <= right:
            return low + (high - low) * (users - left) / (right - left)
    return points[-1][1]
