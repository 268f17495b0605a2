"""What the server has counted, and how a scrape is answered. Asyncio thread only.

Names and labels: the contract. Every value that a label can have is there from the start, so that
`rate()` sees the first event. Never a label per session or user.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.histogram import Histogram, added
from engine.messages import EngineInfo
from engine.questions import EngineStats
from sessiond.errors import ErrorCode
from sessiond.facts import IncompleteReason, TurnFinished
from sessiond.metrics.aliases import alias_families
from sessiond.metrics.engine import engine_families
from sessiond.metrics.families import counter, counters, gauge, histogram, histograms
from sessiond.quota import QUOTA_REASONS

CONTENT_TYPE = CONTENT_TYPE_LATEST
WAIT_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TURN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
KV_BYTES = tuple(float(2**power) for power in range(16, 36))  # 64 KiB to 32 GiB
PATHS = ("warm", "cold")
CONTEXTS = [(c, f) for c in ("full", "trimmed", "summarized") for f in ("exact", "shifted")]
OUTCOMES = ("completed", "failed", *get_args(IncompleteReason))
REFUSALS: dict[ErrorCode, str] = {
    "request_too_large": "refuse",
    "queue_timeout": "queue_timeout",
    "queue_full": "queue_full",
}
"""Of the steps that are taken when memory is short, those that refuse a turn, by the code told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """What a scrape finds out about the moment. `stats` None: the engine did not answer."""

    info: EngineInfo | None
    stats: EngineStats | None
    restarts: int
    sockets: int
    leaked_blocks: int


class Metrics:
    """Counts what ends, and shapes what is polled when a scrape comes."""

    def __init__(self) -> None:
        self._turns = Counter(dict.fromkeys(OUTCOMES, 0))
        self._contexts = Counter(dict.fromkeys(CONTEXTS, 0))
        self._refusals = Counter(dict.fromkeys(REFUSALS.values(), 0))
        self._quota_rejections: Counter[str] = Counter(dict.fromkeys(QUOTA_REASONS, 0))
        self._first_token = {path: Histogram(WAIT_SECONDS) for path in PATHS}
        self._duration = Histogram(TURN_SECONDS)
        self._queue_time = Histogram(WAIT_SECONDS)
        self._kv_bytes = Histogram(KV_BYTES)

    def turn_ended(self, finished: TurnFinished) -> None:
        """Count a turn's ending."""
        usage = finished.usage
        self._turns[finished.reason or finished.status] += 1
        self._contexts[usage.context, usage.fidelity] += 1
        self._duration.add(usage.total_ms / 1000)
        self._queue_time.add(usage.queue_ms / 1000)
        self._kv_bytes.add(usage.kv_bytes)
        if usage.ttft_ms is not None:
            path = "warm" if usage.cached_tokens else "cold"
            self._first_token[path].add(usage.ttft_ms / 1000)
        if finished.error is not None:
            self.turn_refused(finished.error.code)

    def turn_refused(self, code: ErrorCode) -> None:
        """Count a turn that was refused, if that was for want of memory."""
        if code in REFUSALS:
            self._refusals[REFUSALS[code]] += 1

    def quota_refused(self, reason: str) -> None:
        """Count a request that a quota refused."""
        self._quota_rejections[reason] += 1

    def render(self, poll: Poll) -> bytes:
        """Write everything in the Prometheus text format."""
        scrape = CollectorRegistry(auto_describe=False)
        scrape.register(_Scrape(self.families(poll)))
        return generate_latest(scrape)

    def families(self, poll: Poll) -> Iterator[Metric]:
        """Everything, name by name."""
        yield from self._turn_families()
        yield gauge("sessiond_websocket_connections", "Open sockets.", poll.sockets)
        text = "Engines lost and started again."
        yield counter("sessiond_engine_restarts", text, poll.restarts)
        text = "Blocks that somebody refers to and nobody holds; anything but 0 is a fault."
        yield gauge("sessiond_leaked_blocks", text, poll.leaked_blocks)
        yield counters(
            "sessiond_quota_rejections",
            "Requests refused by the limit of a quota.",
            "reason",
            self._quota_rejections,
        )
        yield counters(
            "sessiond_degradations",
            "Steps taken for want of memory.",
            "step",
            {**self._refusals, **_taken(poll.stats)},
        )
        if poll.stats is not None and poll.info is not None:
            yield from engine_families(poll.stats, poll.info)
            first_token = added(one.told() for one in self._first_token.values())
            yield from alias_families(poll.stats, poll.info, first_token)

    def _turn_families(self) -> Iterator[Metric]:
        yield counters("sessiond_turns", "Turns by how they ended.", "outcome", self._turns)
        contexts = CounterMetricFamily(
            "sessiond_turn_contexts",
            "Turns by what the model saw of the session, and how its KV was made.",
            labels=["context", "fidelity"],
        )
        for labels, count in self._contexts.items():
            contexts.add_metric(labels, count)
        yield contexts
        yield histograms(
            "sessiond_time_to_first_token_seconds",
            "From the turn's arrival at the engine to its first token; warm: KV was reused.",
            "path",
            {path: one.told() for path, one in self._first_token.items()},
        )
        for name, text, one in (
            ("sessiond_turn_duration_seconds", "From arrival to ending.", self._duration),
            ("sessiond_queue_time_seconds", "From arrival to the first step.", self._queue_time),
            ("sessiond_turn_kv_bytes", "KV of the session when the turn ended.", self._kv_bytes),
        ):
            yield histogram(name, text, one.told())


class _Scrape(Collector):
    """Families that are there already."""

    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families


def _taken(stats: EngineStats | None) -> dict[str, float]:
    """Steps that the engine took; it may be away."""
    if stats is None:
        return {}
    return {"evict": sum(stats.evictions_total.values()), "preempt": stats.preemptions_total}
