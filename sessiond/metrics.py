"""Prometheus metrics of the server: own registry, no module state. Asyncio thread only.

Names, labels and buckets: the contract; the `vllm:` aliases carry vLLM's labels and buckets so that
dashboards and the Kubernetes Gateway API inference extension read them as they are. Never a label
per session or user.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from engine.messages import Degradation, EngineInfo
from engine.questions import EngineStats
from sessiond.facts import Rung, TurnFinished, TurnUsage
from sessiond.quota import QUOTA_REASONS

CONTENT_TYPE = CONTENT_TYPE_LATEST
_TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_ITL_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_TURN_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_KV_BUCKETS = tuple(float(2**power) for power in range(16, 34, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """What a scrape finds out about the moment. `stats` None: the engine did not answer.

    `demand`: KV that turns at work want, in pools; `warnings` there were of it.
    """

    info: EngineInfo | None
    stats: EngineStats | None
    restarts: int
    hangs: int
    sockets: int
    leaked_blocks: int
    demand: float = 0.0
    warnings: int = 0


class Metrics:
    """Counts what ends, and shapes what is polled when a scrape comes."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._turns = Counter(
            "sessiond_turns", "Turns by how they ended.", ["outcome"], registry=self._registry
        )
        self._degradations = dict.fromkeys(get_args(Rung), 0)
        self._quota_rejections = Counter(
            "sessiond_quota_rejections",
            "Requests refused by the limit of a quota.",
            ["reason"],
            registry=self._registry,
        )
        for reason in QUOTA_REASONS:
            self._quota_rejections.labels(reason=reason)
        self._ttft = self._histogram(
            "sessiond_time_to_first_token_seconds",
            "From the turn's arrival at the engine to its first token; warm: KV was reused.",
            _TTFT_BUCKETS,
            ["path"],
        )
        self._itl = self._histogram(
            "sessiond_inter_token_latency_seconds",
            "Mean time between the tokens of a turn, one observation per turn.",
            _ITL_BUCKETS,
        )
        self._duration = self._histogram(
            "sessiond_turn_duration_seconds", "From arrival to ending.", _TURN_BUCKETS
        )
        self._queue_time = self._histogram(
            "sessiond_queue_time_seconds", "From arrival to the first step.", _TTFT_BUCKETS
        )
        self._kv_bytes = self._histogram(
            "sessiond_turn_kv_bytes", "KV of the session when the turn ended.", _KV_BUCKETS
        )
        self._vllm_ttft = self._histogram(
            "vllm:time_to_first_token_seconds", "Over both paths.", _TTFT_BUCKETS
        )
        self._vllm_itl = self._histogram(
            "vllm:inter_token_latency_seconds", "The same mean of a turn.", _ITL_BUCKETS
        )

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: Sequence[str] = ()
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self._registry)

    def turn_ended(self, finished: TurnFinished) -> None:
        """Count a turn's ending."""
        usage = finished.usage
        self._turns.labels(outcome=finished.reason or finished.status).inc()
        self._duration.observe(usage.total_ms / 1000)
        self._queue_time.observe(usage.queue_ms / 1000)
        self._kv_bytes.observe(usage.kv_bytes)
        if usage.ttft_ms is not None:
            self._first_token(usage, usage.ttft_ms)

    def quota_refused(self, reason: str) -> None:
        """Count a request that a quota refused."""
        self._quota_rejections.labels(reason=reason).inc()

    def degraded(self, step: Rung) -> None:
        """Count a turn that met pressure before the engine had it."""
        self._degradations[step] += 1

    def _first_token(self, usage: TurnUsage, ttft_ms: float) -> None:
        path = "warm" if usage.cached_tokens else "cold"
        self._ttft.labels(path=path).observe(ttft_ms / 1000)
        self._vllm_ttft.observe(ttft_ms / 1000)
        if usage.output_tokens > 1:
            between_ms = (usage.total_ms - ttft_ms) / (usage.output_tokens - 1)
            self._itl.observe(between_ms / 1000)
            self._vllm_itl.observe(between_ms / 1000)

    def render(self, poll: Poll) -> bytes:
        """Write everything in the Prometheus text format."""
        scrape = CollectorRegistry(auto_describe=False)
        scrape.register(_Families(self._registry, poll, self._degradations))
        return generate_latest(scrape)


class _Families(Collector):
    """The counted metrics, then those of the moment."""

    def __init__(
        self, counted: CollectorRegistry, poll: Poll, degradations: Mapping[str, int]
    ) -> None:
        self._counted = counted
        self._poll = poll
        self._degradations = degradations

    def collect(self) -> Iterator[Metric]:
        yield from self._counted.collect()
        poll = self._poll
        yield _gauge("sessiond_websocket_connections", "Open sockets.", poll.sockets)
        yield _counter("sessiond_engine_restarts", "Engines lost and started again.", poll.restarts)
        yield _counter("sessiond_engine_hangs", "Those that hung in a step.", poll.hangs)
        yield _gauge("sessiond_leaked_blocks", "Of the last audit.", poll.leaked_blocks)
        yield _gauge(
            "sessiond_kv_demand_ratio", "KV that turns at work want, in pools.", poll.demand
        )
        yield _counter("sessiond_pressure_warnings", "Times that it got high.", poll.warnings)
        yield _degradations(self._degradations, poll.stats)
        if poll.stats is not None and poll.info is not None:
            yield from _pool_families(poll.stats, poll.info)
            yield from _loop_families(poll.stats)
            yield from _vllm_families(poll.stats, poll.info)


def _degradations(by_gateway: Mapping[str, int], stats: EngineStats | None) -> Metric:
    steps = dict(by_gateway)
    if stats is not None:
        for step in get_args(Degradation):
            steps[step] = stats.degradations_total.get(step, 0)
    return _counters("sessiond_degradations", "Steps taken under pressure.", "step", steps)


def _pool_families(stats: EngineStats, info: EngineInfo) -> Iterator[Metric]:
    idle = stats.contexts - stats.running - stats.parked
    sessions = {"live": stats.contexts, "idle": idle, "parked": stats.parked}
    yield _gauges("sessiond_sessions", "Sessions known to the engine.", "state", sessions)
    blocks = GaugeMetricFamily(
        "sessiond_kv_blocks", "Blocks of the pool.", labels=["tier", "state"]
    )
    blocks.add_metric(["device", "free"], stats.free_blocks)
    blocks.add_metric(["device", "cached"], stats.cached_blocks)
    blocks.add_metric(["device", "active"], stats.active_blocks)
    for name, tier in stats.tiers.items():
        blocks.add_metric([name, "free"], tier.capacity_blocks - tier.blocks)
        blocks.add_metric([name, "cached"], tier.blocks)
    yield blocks
    held = stats.active_blocks * info.block_size
    in_use = held * info.kv_bytes_per_token
    kv_bytes = {"device": in_use, **{name: tier.bytes for name, tier in stats.tiers.items()}}
    yield _gauges("sessiond_kv_bytes", "KV that sessions hold.", "tier", kv_bytes)
    # shared blocks let sessions keep more tokens than there are slots: then nothing is wasted
    wasted = max(0.0, 1 - stats.kept_tokens / held) if held else 0.0
    yield _gauge("sessiond_internal_fragmentation_ratio", "Slots held but empty.", wasted)


def _loop_families(stats: EngineStats) -> Iterator[Metric]:
    prefill = {
        "reused": stats.reused_tokens_total,
        "restored": stats.restored_tokens_total,
        "recomputed": stats.recomputed_tokens_total,
        "new": stats.new_tokens_total,
    }
    yield _counters(
        "sessiond_prefill_tokens", "Where a turn's input KV came from.", "source", prefill
    )
    generated = stats.generated_tokens_total
    yield _counter("sessiond_generated_tokens", "Tokens generated.", generated)
    swapped = stats.swapped_preemptions_total
    preempted = {
        "swap": swapped,
        "recompute": stats.preemptions_total - swapped,
        "pause": stats.pauses_total,
    }
    yield _counters("sessiond_preemptions", "Turns put back to wait.", "kind", preempted)
    drafts = {"accepted": stats.accepted_drafts_total, "rejected": stats.rejected_drafts_total}
    yield _counters("sessiond_draft_tokens", "Tokens guessed and checked.", "outcome", drafts)
    shortages = stats.memory_shortages_total
    yield _counter("sessiond_step_memory_shortages", "Steps parted for want of memory.", shortages)
    evictions = CounterMetricFamily(
        "sessiond_evictions", "Idle sessions whose KV made way.", labels=["policy", "action"]
    )
    for action in ("drop", "swap"):
        labels = [stats.placement_policy, action]
        evictions.add_metric(labels, stats.evictions_total.get(action, 0))
    yield evictions
    yield from _tier_families(stats)
    reclaim = SummaryMetricFamily("sessiond_reclaim_seconds", "KV given back.", labels=["cause"])
    for cause, count in sorted(stats.reclaims_total.items()):
        seconds = stats.reclaim_seconds_total.get(cause, 0.0)
        reclaim.add_metric([cause], count_value=count, sum_value=seconds)
    yield reclaim
    yield SummaryMetricFamily(
        "sessiond_step_seconds",
        "Steps of the engine.",
        count_value=stats.steps_total,
        sum_value=stats.step_seconds_total,
    )


def _tier_families(stats: EngineStats) -> Iterator[Metric]:
    moved = CounterMetricFamily(
        "sessiond_swap_bytes", "KV written to a tier, or read back.", labels=["direction", "tier"]
    )
    seconds = SummaryMetricFamily(
        "sessiond_swap_seconds", "Moves, of several blocks each.", labels=["direction", "tier"]
    )
    refused = CounterMetricFamily(
        "sessiond_tier_refused_blocks",
        "Blocks not written, or not right when read.",
        labels=["tier"],
    )
    for name, tier in stats.tiers.items():
        moved.add_metric(["out", name], tier.stored_bytes_total)
        moved.add_metric(["in", name], tier.fetched_bytes_total)
        seconds.add_metric(["out", name], tier.stores_total, tier.store_seconds_total)
        seconds.add_metric(["in", name], tier.fetches_total, tier.fetch_seconds_total)
        refused.add_metric([name], tier.refused_blocks_total)
    yield from (moved, seconds, refused)


def _vllm_families(stats: EngineStats, info: EngineInfo) -> Iterator[Metric]:
    labels = {"model_name": info.model, "engine": "0"}
    used = stats.active_blocks / stats.total_blocks if stats.total_blocks else 0.0
    for name, value in (
        ("num_requests_running", stats.running),
        ("num_requests_waiting", stats.waiting),
        ("kv_cache_usage_perc", used),
    ):
        gauge = GaugeMetricFamily(f"vllm:{name}", f"vLLM's {name}.", labels=list(labels))
        gauge.add_metric(list(labels.values()), value)
        yield gauge
    config = {"block_size": str(info.block_size), "num_gpu_blocks": str(info.total_blocks)}
    cache = GaugeMetricFamily(
        "vllm:cache_config_info", "Size of the pool.", labels=[*config, *labels]
    )
    cache.add_metric([*config.values(), *labels.values()], 1)
    yield cache
    for name, value in (
        ("prefix_cache_queries", stats.prefix_queries_total),
        ("prefix_cache_hits", stats.prefix_hits_total),
        ("num_preemptions", stats.preemptions_total),
        (
            "spec_decode_num_draft_tokens",
            stats.accepted_drafts_total + stats.rejected_drafts_total,
        ),
        ("spec_decode_num_accepted_tokens", stats.accepted_drafts_total),
    ):
        counter = CounterMetricFamily(f"vllm:{name}", f"vLLM's {name}.", labels=list(labels))
        counter.add_metric(list(labels.values()), value)
        yield counter


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauges(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counters(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
