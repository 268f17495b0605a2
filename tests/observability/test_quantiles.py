"""M05: a p99 that an operator can trust, and nothing observed of turns that never ran."""

import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.system.histogram import TOKEN_SECONDS, Histogram, bounds_within
from sessiond.domain import TurnError, TurnFinished, TurnUsage
from sessiond.observability.metrics import KV_BYTES, TURN_SECONDS, WAIT_SECONDS, Metrics, Poll
from tests.observability.prometheus import scraping

POLL = Poll(
    info=None,
    stats=None,
    restarts=0,
    hangs=0,
    sockets=0,
    leaked_blocks=0,
    has_database=True,
    started_at=0.0,
)


def quantile(bounds, values, share):
    """As Prometheus' `histogram_quantile`, and its truth: the value of that rank."""
    histogram = Histogram(bounds)
    for value in values:
        histogram.add(value)
    counts, wanted, below = histogram.snapshot().counts, share * len(values), 0
    for low, high, count in zip((0.0, *bounds), bounds, counts, strict=False):
        if count and below + count >= wanted:
            return low + (high - low) * (wanted - below) / count
        below += count
    return bounds[-1]


def rank(values, share):
    """The least and the greatest value that may be called this quantile."""
    ordered = sorted(values)
    place = share * len(ordered)
    return ordered[max(0, int(place - 1e-9))], ordered[min(len(ordered) - 1, int(place + 1e-9))]


@given(
    st.sampled_from([(KV_BYTES, 0.1), (WAIT_SECONDS, 0.25), (TURN_SECONDS, 0.25)]),
    st.lists(st.floats(0.01, 1), min_size=1, max_size=60),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_m05_quantiles_are_within_their_error(kind, places, share):
    bounds, error = kind
    values = [bounds[0] * (bounds[-1] / bounds[0]) ** place for place in places]
    low, high = rank(values, share)
    found = quantile(bounds, values, share)
    assert low / (1 + error) * 0.999 <= found <= high * (1 + error) * 1.001


@pytest.mark.parametrize(
    ("bounds", "error"),
    [(KV_BYTES, 0.1), (WAIT_SECONDS, 0.25), (TURN_SECONDS, 0.25), (TOKEN_SECONDS, 0.25)],
)
def test_bounds_rise_by_no_more_than_the_error(bounds, error):
    steps = [high / low - 1 for low, high in pairwise(bounds)]
    assert min(steps) > 0
    assert max(steps) <= error + 1e-9


def test_bounds_begin_and_end_where_they_were_asked_to():
    bounds = bounds_within(0.5, 3.0, 0.5)
    assert bounds == (0.5, 0.75, 1.125, 1.68, 2.52, 3.78)


def ended(kv_bytes, status="completed", **usage):
    error = None
    if status == "failed":
        error = TurnError(code="queue_timeout", message="no running slot became free in time")
    return TurnFinished(
        status=status,
        text="",
        usage=TurnUsage(kv_bytes=kv_bytes, queue_ms=5.0, total_ms=9.0, **usage),
        error=error,
    )


def test_m05_a_turn_that_never_ran_is_in_no_histogram_of_running():
    metrics = Metrics()
    metrics.turn_ended(ended(2_000_000, new_tokens=10))
    metrics.turn_ended(ended(0, status="failed"))
    page = metrics.render(POLL).decode()
    assert "sessiond_turn_kv_bytes_count 1.0" in page
    assert "sessiond_queue_time_seconds_count 1.0" in page
    assert "sessiond_turn_duration_seconds_count 2.0" in page, "it had a beginning and an end"
    assert 'sessiond_turns_total{outcome="failed"} 1.0' in page


@pytest.mark.second
@pytest.mark.parametrize("seed", [1, 2])
async def test_m05_a_real_prometheus_tells_the_p99_within_a_tenth(programs, tmp_path, seed):
    chance = random.Random(seed)
    metrics = Metrics()
    sizes = [chance.lognormvariate(16, 1.0) for _ in range(5000)]
    for size in sizes:
        metrics.turn_ended(ended(round(size), new_tokens=10))
        metrics.turn_ended(ended(0, status="failed"))
    page = metrics.render(POLL)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        async with scraping(programs, tmp_path, server.server_port) as prom:
            for share in (0.5, 0.99):
                expression = (
                    f"histogram_quantile({share}, sum by (le) (sessiond_turn_kv_bytes_bucket))"
                )
                truth = sorted(sizes)[int(share * len(sizes))]
                assert await prom.value(expression) == pytest.approx(truth, rel=0.1)
    finally:
        server.shutdown()
        server.server_close()
