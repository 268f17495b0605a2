"""Summarises observations per stage, with a constant number of users. Pure."""

import statistics
from collections.abc import Sequence

import msgspec

from sessiond.capacity.observations import Seen, ServerSeen, StageBegun, TurnSeen

_SETTLING = 0.3  # share of a stage that is ignored: new users have not finished a turn yet


class LoadStage(msgspec.Struct, frozen=True, kw_only=True):
    """Results for one number of users and one length, without the settling time.

    Latencies are in seconds, None without observations; `pool_use` is the highest share of
    blocks in use, `kv_bytes` their bytes. Conversations began with `length_tokens`.
    """

    users: int
    seconds: float
    turns_per_s: float
    tokens_per_s: float
    ttft_warm_p50_s: float | None
    ttft_warm_p95_s: float | None
    ttft_cold_p95_s: float | None
    inter_token_p95_s: float | None
    pool_use: float
    kv_bytes: int
    waiting: float
    refusals: int
    lost: int
    evictions: float
    preemptions: float
    length_tokens: int = 0


def sum_up(seen: Sequence[Seen]) -> list[LoadStage]:
    """Return the stages in order; those in which no turn ended have zeros."""
    begun = [each for each in seen if isinstance(each, StageBegun)]
    return [_stage(stage, seen) for stage in begun]


def _stage(stage: StageBegun, seen: Sequence[Seen]) -> LoadStage:
    start_s = stage.at_s + stage.seconds * _SETTLING
    end_s = stage.at_s + stage.seconds
    during = [each for each in seen if start_s <= each.at_s < end_s]
    turns = [each for each in during if isinstance(each, TurnSeen)]
    samples = [each for each in during if isinstance(each, ServerSeen)]
    good = [turn for turn in turns if not turn.lost]
    seconds = end_s - start_s
    warm = [turn.ttft_s for turn in good if turn.warm and turn.ttft_s is not None]
    cold = [turn.ttft_s for turn in good if not turn.warm and turn.ttft_s is not None]
    between = [turn.inter_token_s for turn in good if turn.inter_token_s is not None]
    most = max(samples, key=lambda sample: sample.active_blocks, default=None)
    return LoadStage(
        users=stage.users,
        seconds=seconds,
        turns_per_s=len(good) / seconds,
        tokens_per_s=sum(turn.output_tokens for turn in good) / seconds,
        ttft_warm_p50_s=quantile(warm, 0.5),
        ttft_warm_p95_s=quantile(warm, 0.95),
        ttft_cold_p95_s=quantile(cold, 0.95),
        inter_token_p95_s=quantile(between, 0.95),
        pool_use=most.active_blocks / most.total_blocks if most else 0.0,
        kv_bytes=most.active_blocks * most.block_bytes if most else 0,
        waiting=statistics.fmean(sample.waiting for sample in samples) if samples else 0.0,
        refusals=sum(turn.refusals for turn in turns),
        lost=sum(turn.lost for turn in turns),
        evictions=_grown([sample.evictions_total for sample in samples]),
        preemptions=_grown([sample.preemptions_total for sample in samples]),
        length_tokens=stage.length_tokens,
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return a quantile, interpolated by rank; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _grown(values: Sequence[float]) -> float:
    return max(0.0, values[-1] - values[0]) if values else 0.0
