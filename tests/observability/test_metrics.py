"""What a scrape is told, without a Prometheus: seeded labels, tokens beside blocks, its cost."""

import asyncio
import contextlib
import json
import threading
from typing import get_args

import pytest
import sqlalchemy as sa

from engine.ipc.messages import Degradation
from engine.ipc.queries import GetStats
from sessiond.domain import DegradationLevel
from sessiond.sessions.limits import ServiceLimits
from tests.observability.conftest import samples_of
from tests.observability.scenario import ENDINGS

SEEDED = {
    "sessiond_turns_total": {"outcome": {"completed", "failed", "max_output_tokens", "cancelled",
                                         "deadline", "memory_pressure", "context_length"}},
    "sessiond_prefill_tokens_total": {"source": {"reused", "restored", "recomputed", "new"}},
    "sessiond_time_to_first_token_seconds_count": {"path": {"warm", "cold"}},
    "sessiond_swap_bytes_total": {"direction": {"in", "out"}, "tier": {"host", "disk"}},
    "sessiond_preemptions_total": {"kind": {"swap", "recompute", "pause"}},
    "sessiond_evictions_total": {"policy": {"lru"}, "action": {"drop", "swap"}},
    "sessiond_degradations_total": {"step": {*get_args(DegradationLevel), *get_args(Degradation)}},
    "sessiond_quota_rejections_total": {"reason": {"max_concurrent_turns", "tokens_per_minute",
                                                   "tokens_per_day", "max_sessions"}},
    "sessiond_sessions": {"state": {"running", "waiting", "idle", "parked", "cold"}},
    "sessiond_kv_bytes": {"tier": {"device", "host", "disk"}},
}  # fmt: skip


def test_every_label_value_is_there_before_anything_happens(samples):
    for name, labels in SEEDED.items():
        for label, values in labels.items():
            there = {one.labels[label] for one in samples if one.name == name}
            assert there == values, (name, label)


def test_the_first_event_counts(samples):
    """`rate()` sees nothing of a series that begins with its first event."""
    assert {sample.value for sample in samples if sample.name == "sessiond_turns_total"} == {0}


async def prefill(ws, text):
    """A session whose context is `text`, its role and its end of turn."""
    frame = {"type": "response.create", "input": text, "generate": False}
    await ws.send(json.dumps(frame))
    async with asyncio.timeout(60):
        while (event := json.loads(await ws.recv()))["type"] != "response.completed":
            assert event["type"] not in {"error", "response.failed"}, event


def value(samples, name, **labels):
    (found,) = [one.value for one in samples if one.name == name and one.labels == labels]
    return found


@contextlib.asynccontextmanager
async def with_sessions(stack, count):
    """A server with so many sessions of 17 tokens each, which no timer disturbs."""
    quiet = ServiceLimits(reap_every_s=1e6, heartbeat_s=1e6, residency_every_s=1e6)
    async with stack(service_limits=quiet) as running, running.served.connect() as ws:
        for number in range(count):
            await prefill(ws, f"{number:06d} tokens.")
        yield running


async def test_blocks_are_not_tokens_and_both_are_told(stack):
    """vLLM 57336: many prompts of 17 tokens in blocks of 16 held twice the blocks of their size."""
    async with with_sessions(stack, 20) as running:
        samples = await samples_of(running)
    blocks = value(samples, "sessiond_kv_active_blocks", holder="idle")
    tokens = value(samples, "sessiond_kv_tokens", tier="device", state="idle")
    assert (blocks, tokens) == (40, 20 * 17)
    assert value(samples, "sessiond_kv_blocks", tier="device", state="active") == 40
    assert value(samples, "sessiond_kv_active_blocks", holder="running") == 0
    wasted = value(samples, "sessiond_internal_fragmentation_ratio")
    assert wasted == pytest.approx(1 - 17 / 32)
    used = [one.value for one in samples if one.name == "vllm:kv_cache_usage_perc"]
    assert used == [40 / 256]


async def test_cached_and_swapped_are_told_apart_from_held(watched_samples):
    for state in ("running", "idle", "cached"):
        assert value(watched_samples, "sessiond_kv_tokens", tier="device", state=state) >= 0
    for tier in ("host", "disk"):
        blocks = value(watched_samples, "sessiond_kv_blocks", tier=tier, state="cached")
        tokens = value(watched_samples, "sessiond_kv_tokens", tier=tier, state="swapped")
        assert tokens == 16 * blocks > 0


@pytest.mark.parametrize("sessions", [1, 30])
async def test_a_scrape_asks_the_engine_once_and_sql_never(stack, monkeypatch, sessions):
    async with with_sessions(stack, sessions) as running:
        asked, statements = [], []
        ask = running.engine.ask

        async def counted(query):
            asked.append(query)
            return await ask(query)

        monkeypatch.setattr(running.engine, "ask", counted)
        with listening(statements):
            await samples_of(running)
    assert asked == [GetStats()]
    assert statements == []


@contextlib.contextmanager
def listening(statements):
    def note(_connection, _cursor, statement, *_):
        statements.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


async def test_turns_that_are_refused_for_want_of_places_are_counted(stack):
    one = ServiceLimits(max_outstanding=1)
    async with stack(service_limits=one) as running:
        async with running.served.connect() as first, running.served.connect() as second:
            running.model.gate = threading.Event()
            await first.send(json.dumps({"type": "response.create", "input": "hi"}))
            while json.loads(await first.recv())["type"] != "response.in_progress":
                pass
            await second.send(json.dumps({"type": "response.create", "input": "hi"}))
            refused = json.loads(await second.recv())
            running.model.gate.set()
            while json.loads(await first.recv())["type"] not in ENDINGS:
                pass
        samples = await samples_of(running)
    assert refused["error"]["code"] == "queue_full"
    assert value(samples, "sessiond_degradations_total", step="refuse_new") == 1
    assert value(samples, "sessiond_degradations_total", step="refuse_impossible") == 0
