"""Metric families of the engine's statistics, under `sessiond_` names and under vLLM's. Pure."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from engine.ipc.messages import EngineInfo
from engine.ipc.queries import EngineStats, ReclaimCause, TierName, TierStats
from engine.system.histogram import MOVE_SECONDS, RECLAIM_SECONDS, Buckets, added, empty
from sessiond.observability.families import (
    counter,
    counters,
    cumulated,
    gauge,
    gauges,
    histogram,
    histograms,
)

TIERS = get_args(TierName)
_NO_TIER = TierStats(
    blocks=0,
    capacity_blocks=0,
    bytes=0,
    stored_bytes_total=0,
    fetched_bytes_total=0,
    store_times=empty(MOVE_SECONDS),
    fetch_times=empty(MOVE_SECONDS),
    refused_blocks_total=0,
)


def engine_families(stats: EngineStats, info: EngineInfo) -> Iterator[Metric]:
    """Yield the engine's stats under the `sessiond_` names."""
    tiers = {name: stats.tiers.get(name, _NO_TIER) for name in TIERS}
    states = session_states(stats)
    yield gauges("sessiond_sessions", "Sessions known to the engine.", "state", states)
    yield from _pool_families(stats, info, tiers)
    yield from _token_families(stats)
    yield from _loop_families(stats)
    yield from _tier_families(tiers)


def session_states(stats: EngineStats) -> dict[str, int]:
    """Sessions by state; each is in exactly one. Without a turn: see `kv_state`."""
    states = {
        "running": stats.running,
        "waiting": stats.waiting,
        "idle": stats.idle,
        "parked": stats.parked,
    }
    return {**states, "cold": max(0, stats.contexts - sum(states.values()))}


def _pool_families(
    stats: EngineStats, info: EngineInfo, tiers: dict[str, TierStats]
) -> Iterator[Metric]:
    blocks = GaugeMetricFamily(
        "sessiond_kv_blocks", "Blocks by tier and state.", labels=["tier", "state"]
    )
    blocks.add_metric(["device", "free"], stats.free_blocks)
    blocks.add_metric(["device", "cached"], stats.cached_blocks)
    blocks.add_metric(["device", "active"], stats.active_blocks)
    for name, tier in tiers.items():
        blocks.add_metric([name, "free"], tier.capacity_blocks - tier.blocks)
        blocks.add_metric([name, "cached"], tier.blocks)
    yield blocks
    held = {
        "running": stats.running_blocks,
        "idle": stats.active_blocks - stats.running_blocks,
    }
    text = "Active blocks by holder: running turns or idle sessions."
    yield gauges("sessiond_kv_active_blocks", text, "holder", held)
    slots = stats.active_blocks * info.block_size
    in_device = (stats.active_blocks + stats.cached_blocks) * info.block_size
    kv_bytes = {
        "device": in_device * info.kv_bytes_per_token,
        **{name: tier.bytes for name, tier in tiers.items()},
    }
    yield gauges("sessiond_kv_bytes", "Bytes of KV, active and cached.", "tier", kv_bytes)
    tokens = GaugeMetricFamily(
        "sessiond_kv_tokens", "Tokens with KV, by tier and state.", labels=["tier", "state"]
    )
    tokens.add_metric(["device", "running"], stats.running_tokens)
    tokens.add_metric(["device", "idle"], stats.kept_tokens - stats.running_tokens)
    tokens.add_metric(["device", "cached"], stats.cached_blocks * info.block_size)
    for name, tier in tiers.items():
        tokens.add_metric([name, "swapped"], tier.blocks * info.block_size)
    yield tokens
    # with shared blocks, sessions may keep more tokens than there are slots: nothing is wasted
    wasted = max(0.0, 1 - stats.kept_tokens / slots) if slots else 0.0
    yield gauge(
        "sessiond_internal_fragmentation_ratio",
        "Share of slots in active blocks that hold no token.",
        wasted,
    )


def _token_families(stats: EngineStats) -> Iterator[Metric]:
    prefill = {
        "reused": stats.reused_tokens_total,
        "restored": stats.restored_tokens_total,
        "recomputed": stats.recomputed_tokens_total,
        "new": stats.new_tokens_total,
    }
    text = "Input tokens by the source of their KV."
    yield counters("sessiond_prefill_tokens", text, "source", prefill)
    yield counter("sessiond_generated_tokens", "Tokens generated.", stats.generated_tokens_total)
    drafts = {"accepted": stats.accepted_drafts_total, "rejected": stats.rejected_drafts_total}
    yield counters("sessiond_draft_tokens", "Draft tokens verified.", "outcome", drafts)
    text = "Time between tokens of a turn; tokens of one step share its time."
    yield histogram("sessiond_inter_token_latency_seconds", text, stats.token_times)


def _loop_families(stats: EngineStats) -> Iterator[Metric]:
    swapped = stats.swapped_preemptions_total
    preempted = {
        "swap": swapped,
        "recompute": stats.preemptions_total - swapped,
        "pause": stats.pauses_total,
    }
    yield counters("sessiond_preemptions", "Preempted turns.", "kind", preempted)
    evictions = CounterMetricFamily(
        "sessiond_evictions", "Idle sessions evicted.", labels=["policy", "action"]
    )
    for action in ("drop", "swap"):
        labels = [stats.placement_policy, action]
        evictions.add_metric(labels, stats.evictions_total.get(action, 0))
    yield evictions
    none = empty(RECLAIM_SECONDS)
    causes: tuple[ReclaimCause, ...] = get_args(ReclaimCause)
    reclaims: dict[str, Buckets] = {cause: stats.reclaim_times.get(cause, none) for cause in causes}
    yield histograms(
        "sessiond_reclaim_seconds", "Time to trim or free KV, by cause.", "cause", reclaims
    )
    yield histogram("sessiond_step_seconds", "Duration of engine steps.", stats.step_times)
    shortages = stats.memory_shortages_total
    yield counter("sessiond_step_memory_shortages", "Steps that ran out of memory.", shortages)


def _tier_families(tiers: dict[str, TierStats]) -> Iterator[Metric]:
    moved = CounterMetricFamily(
        "sessiond_swap_bytes",
        "KV bytes written to a tier or read back.",
        labels=["direction", "tier"],
    )
    for name, tier in tiers.items():
        moved.add_metric(["out", name], tier.stored_bytes_total)
        moved.add_metric(["in", name], tier.fetched_bytes_total)
    yield moved
    moves = HistogramMetricFamily(
        "sessiond_tier_move_seconds",
        "KV transfer time by direction and tier.",
        labels=["direction", "tier"],
    )
    for name, tier in tiers.items():
        for direction, times in (("out", tier.store_times), ("in", tier.fetch_times)):
            moves.add_metric([direction, name], cumulated(times), times.total)
    every = [times for tier in tiers.values() for times in (tier.store_times, tier.fetch_times)]
    yield histogram("sessiond_swap_seconds", "KV transfer time.", added(every))
    yield moves
    refused = {name: tier.refused_blocks_total for name, tier in tiers.items()}
    text = "Blocks not written, or corrupt when read."
    yield counters("sessiond_tier_refused_blocks", text, "tier", refused)


def alias_families(stats: EngineStats, info: EngineInfo, first_token: Buckets) -> Iterator[Metric]:
    """Yield vLLM's families. `first_token`: seconds to the first token, over both paths."""
    labels = {"model_name": info.model, "engine": "0"}
    used = stats.active_blocks / stats.total_blocks if stats.total_blocks else 0.0
    for name, value in (
        ("num_requests_running", stats.running),
        ("num_requests_waiting", stats.waiting),
        ("kv_cache_usage_perc", used),
    ):
        yield gauge(f"vllm:{name}", f"vLLM's {name}.", value, labels)
    config = {"block_size": str(info.block_size), "num_gpu_blocks": str(info.total_blocks)}
    yield gauge("vllm:cache_config_info", "Size of the KV pool.", 1, {**config, **labels})
    drafts = stats.accepted_drafts_total + stats.rejected_drafts_total
    for name, value in (
        ("prefix_cache_queries", stats.prefix_queries_total),
        ("prefix_cache_hits", stats.prefix_hits_total),
        ("num_preemptions", stats.preemptions_total),
        ("spec_decode_num_draft_tokens", drafts),
        ("spec_decode_num_accepted_tokens", stats.accepted_drafts_total),
    ):
        yield counter(f"vllm:{name}", f"vLLM's {name}.", value, labels)
    for name, buckets in (
        ("time_to_first_token_seconds", first_token),
        ("inter_token_latency_seconds", stats.token_times),
    ):
        yield histogram(f"vllm:{name}", f"vLLM's {name}.", buckets, labels)
