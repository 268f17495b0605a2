"""Server metrics in the Prometheus text format. Asyncio thread only.

Names and labels are the contract. Every label value exists from the start, so that `rate()` sees
the first event. No label holds a session or user.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.ipc.messages import Degradation, EngineInfo
from engine.ipc.queries import EngineStats
from engine.system.histogram import Histogram, added, bounds_within
from sessiond.domain import DegradationLevel, IncompleteReason, TurnFinished
from sessiond.observability.engine_metrics import alias_families, engine_families
from sessiond.observability.families import counter, counters, gauge, histogram, histograms
from sessiond.quota import QUOTA_REASONS

CONTENT_TYPE = CONTENT_TYPE_LATEST
WAIT_SECONDS = bounds_within(0.001, 600.0, 0.25)
TURN_SECONDS = bounds_within(0.01, 600.0, 0.25)
KV_BYTES = bounds_within(1e5, 1e11, 0.1)
PATHS = ("warm", "cold")
CONTEXTS = [(c, f) for c in ("full", "trimmed", "summarized") for f in ("exact", "shifted")]
OUTCOMES = ("completed", "failed", *get_args(IncompleteReason))


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """State polled by a scrape. `stats` is None when the engine did not answer.

    `demand`: KV demand of active turns / pool size. `warnings`: number of pressure warnings.
    `started_at`: when the gateway started, in Unix seconds.
    """

    info: EngineInfo | None
    stats: EngineStats | None
    restarts: int
    hangs: int
    sockets: int
    leaked_blocks: int
    has_database: bool
    started_at: float
    demand: float = 0.0
    warnings: int = 0


class Metrics:
    """Counts finished turns and formats the polled state for a scrape."""

    def __init__(self) -> None:
        self._turns = Counter(dict.fromkeys(OUTCOMES, 0))
        self._contexts = Counter(dict.fromkeys(CONTEXTS, 0))
        self._degradations: Counter[str] = Counter(dict.fromkeys(get_args(DegradationLevel), 0))
        self._quota_rejections: Counter[str] = Counter(dict.fromkeys(QUOTA_REASONS, 0))
        self._first_token = {path: Histogram(WAIT_SECONDS) for path in PATHS}
        self._duration = Histogram(TURN_SECONDS)
        self._queue_time = Histogram(WAIT_SECONDS)
        self._kv_bytes = Histogram(KV_BYTES)

    def turn_ended(self, finished: TurnFinished) -> None:
        """Count a finished turn."""
        usage = finished.usage
        self._turns[finished.reason or finished.status] += 1
        self._contexts[usage.context, usage.fidelity] += 1
        self._duration.add(usage.total_ms / 1000)
        if usage.input_tokens:  # otherwise it never ran: it had no first step and no KV
            self._queue_time.add(usage.queue_ms / 1000)
            self._kv_bytes.add(usage.kv_bytes)
        if usage.ttft_ms is not None:
            path = "warm" if usage.cached_tokens else "cold"
            self._first_token[path].add(usage.ttft_ms / 1000)

    def degraded(self, step: DegradationLevel) -> None:
        """Count a turn degraded under pressure before it reached the engine."""
        self._degradations[step] += 1

    def quota_refused(self, reason: str) -> None:
        """Count a request rejected by a quota."""
        self._quota_rejections[reason] += 1

    def render(self, poll: Poll) -> bytes:
        """Render all families in the Prometheus text format."""
        scrape = CollectorRegistry(auto_describe=False)
        scrape.register(_Scrape(self.families(poll)))
        return generate_latest(scrape)

    def families(self, poll: Poll) -> Iterator[Metric]:
        """Yield all metric families."""
        yield from self._turn_families()
        yield gauge("sessiond_websocket_connections", "Open WebSocket connections.", poll.sockets)
        text = "Start of the gateway, in Unix seconds."
        yield gauge("process_start_time_seconds", text, poll.started_at)
        text = "1 while the database can be used, else 0."
        yield gauge("sessiond_database_available", text, poll.has_database)
        text = "Engine restarts after a loss."
        yield counter("sessiond_engine_restarts", text, poll.restarts)
        yield counter("sessiond_engine_hangs", "Engine restarts after a hung step.", poll.hangs)
        text = "Blocks with references but no holder; any value but 0 is a fault."
        yield gauge("sessiond_leaked_blocks", text, poll.leaked_blocks)
        yield counters(
            "sessiond_quota_rejections",
            "Requests rejected by a quota.",
            "reason",
            self._quota_rejections,
        )
        yield gauge("sessiond_kv_demand_ratio", "KV demand of active turns, in pools.", poll.demand)
        yield counter(
            "sessiond_pressure_warnings",
            "Times that KV demand rose above its warning watermark.",
            poll.warnings,
        )
        steps = {**self._degradations, **_taken(poll.stats)}
        yield counters("sessiond_degradations", "Degradation steps taken.", "step", steps)
        if poll.stats is not None and poll.info is not None:
            yield from engine_families(poll.stats, poll.info)
            first_token = added(one.snapshot() for one in self._first_token.values())
            yield from alias_families(poll.stats, poll.info, first_token)

    def _turn_families(self) -> Iterator[Metric]:
        yield counters("sessiond_turns", "Finished turns by outcome.", "outcome", self._turns)
        contexts = CounterMetricFamily(
            "sessiond_turn_contexts",
            "Turns by the form of their context and the fidelity of its KV.",
            labels=["context", "fidelity"],
        )
        for labels, count in self._contexts.items():
            contexts.add_metric(labels, count)
        yield contexts
        yield histograms(
            "sessiond_time_to_first_token_seconds",
            "Time from arrival at the engine to the first token (warm = cached KV was reused).",
            "path",
            {path: one.snapshot() for path, one in self._first_token.items()},
        )
        for name, text, one in (
            ("sessiond_turn_duration_seconds", "Time from arrival to the end.", self._duration),
            (
                "sessiond_queue_time_seconds",
                "Time from arrival to the first step.",
                self._queue_time,
            ),
            ("sessiond_turn_kv_bytes", "KV of the session at the end of the turn.", self._kv_bytes),
        ):
            yield histogram(name, text, one.snapshot())


class _Scrape(Collector):
    """A collector over prepared families."""

    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families


def _taken(stats: EngineStats | None) -> dict[str, float]:
    """Degradation steps taken by the engine; empty when it did not answer."""
    if stats is None:
        return {}
    return {step: stats.degradations_total.get(step, 0) for step in get_args(Degradation)}
