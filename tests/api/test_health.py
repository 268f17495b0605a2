"""Health, capacity, models, metrics and the audit."""

import asyncio
from typing import get_args

import httpx
import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from engine.ipc.messages import Degradation
from engine.ipc.queries import TierInfo
from sessiond.api.health import capacity_object
from sessiond.domain import DegradationLevel, TurnFinished, TurnUsage
from tests.api.schemas import strict
from tests.api.scripted import AUDIT, INFO, STATS, TIER, ScriptedEngine, ScriptedService, reply
from tests.harness.serving import gateway_of, serving

SERVICE = ScriptedService(lambda _: reply("x"))


async def get(path, engine=None, draining=False, turns=()):
    gateway = gateway_of(SERVICE, engine)
    for turn in turns:
        gateway.metrics.turn_ended(turn)
    async with serving(gateway) as served:
        if draining:
            gateway.connections.begin_drain()
        async with httpx.AsyncClient(base_url=served.http_url, trust_env=False, timeout=60) as http:
            return await http.get(path)


async def test_alive_whatever_the_engine_does():
    engine = ScriptedEngine()
    engine.available = False
    assert (await get("/health/live", engine)).status_code == 200


async def test_ready_only_while_a_turn_would_be_taken():
    engine = ScriptedEngine()
    assert (await get("/health/ready", engine)).status_code == 200
    assert (await get("/health/ready", engine, draining=True)).json() == {"status": "draining"}
    engine.available = False
    response = await get("/health/ready", engine)
    assert (response.status_code, response.json()) == (503, {"status": "engine_unavailable"})


async def test_not_ready_while_the_engine_hangs_in_a_step():
    engine = ScriptedEngine()
    gateway = gateway_of(SERVICE, engine, ask_timeout_s=0.01)

    async def ask(query):
        await asyncio.Event().wait()

    engine.ask = ask
    async with serving(gateway) as served, httpx.AsyncClient(trust_env=False, timeout=60) as http:
        response = await http.get(f"{served.http_url}/health/ready")
    assert (response.status_code, response.json()) == (503, {"status": "engine_unavailable"})


async def test_not_ready_while_turns_can_not_be_stored(monkeypatch):
    monkeypatch.setattr(SERVICE, "database_failure", "disk full at /var/lib/secret")
    response = await get("/health/ready")
    assert (response.status_code, response.json()) == (503, {"status": "database_unavailable"})


async def test_capacity_tells_blocks_that_add_up():
    capacity = (await get("/health/capacity")).json()
    assert capacity == {
        "accepting": True,
        "block_size": 16,
        "kv_bytes_per_token": 64,
        "total_blocks": 100,
        "free_blocks": 70,
        "cached_blocks": 20,
        "active_blocks": 10,
        "host_blocks": 0,
        "disk_blocks": 0,
        "running": 1,
        "waiting": 2,
        "max_num_seqs": 8,
        "sessions": {"live": 3, "idle": 2, "parked": 0},
        "memory": {
            "free_bytes": 3,
            "weights_bytes": 1,
            "activation_bytes": 2,
            "pool_bytes": INFO.pool_bytes,
        },
        "fits": {"1024": 1, "4096": 0},
        "pressure": {"level": "none", "demand_tokens": 0, "demand_ratio": 0.0},
    }
    assert (
        capacity["free_blocks"] + capacity["cached_blocks"] + capacity["active_blocks"]
        == capacity["total_blocks"]
    )
    assert capacity_object(STATS, INFO, accepting=False)["accepting"] is False


async def test_sessions_are_counted_alike_wherever_they_are_told():
    engine = ScriptedEngine()
    engine.stats = structs.replace(STATS, contexts=10, idle=2, parked=2)
    expected = {"live": 10, "idle": 2, "parked": 2}
    assert (await get("/health/capacity", engine)).json()["sessions"] == expected
    assert (await get("/admin/memory", engine)).json()["sessions"] == expected
    found = samples((await get("/metrics", engine)).text)
    for state in ("idle", "parked"):
        assert found["sessiond_sessions", ("state", state)] == expected[state]


async def test_tiers_are_counted_and_told():
    engine = ScriptedEngine()
    tiers = {"disk": TIER}
    engine.stats = structs.replace(STATS, tiers=tiers, idle=1, parked=1, restored_tokens_total=7,
                                   swapped_preemptions_total=1)  # fmt: skip
    capacity = (await get("/health/capacity", engine)).json()
    assert (capacity["disk_blocks"], capacity["host_blocks"]) == (30, 0)
    assert capacity["sessions"] == {"live": 3, "idle": 1, "parked": 1}
    found = samples((await get("/metrics", engine)).text)
    disk = ("tier", "disk")
    assert found["sessiond_kv_blocks", ("state", "cached"), disk] == 30
    assert found["sessiond_kv_blocks", ("state", "free"), disk] == 20
    assert found["sessiond_kv_bytes", disk] == 30 * 4096
    assert found["sessiond_swap_bytes_total", ("direction", "out"), disk] == 40960
    assert found["sessiond_swap_bytes_total", ("direction", "in"), disk] == 8192
    assert found["sessiond_tier_move_seconds_count", ("direction", "out"), disk] == 4
    assert found["sessiond_tier_move_seconds_sum", ("direction", "in"), disk] == 0.25
    assert (found["sessiond_swap_seconds_count",], found["sessiond_swap_seconds_sum",]) == (6, 0.75)
    assert found["sessiond_tier_refused_blocks_total", disk] == 1
    assert found["sessiond_prefill_tokens_total", ("source", "restored")] == 7
    assert found["sessiond_preemptions_total", ("kind", "swap")] == 1
    assert found["sessiond_preemptions_total", ("kind", "recompute")] == 0


async def test_the_audit_tells_what_tiers_there_are():
    engine = ScriptedEngine()
    there = TierInfo(name="disk", bytes=100, blocks=3, read_rate=7.4, write_rate=5.6, path="kv")
    engine.info = structs.replace(
        INFO, tiers=(there, TierInfo(name="host", bytes=9, reason="no memory"))
    )
    audit = (await get("/admin/memory", engine)).json()
    assert audit["tiers"] == [
        {"name": "disk", "bytes": 100, "blocks": 3, "path": "kv",
         "read_bytes_per_s": 7, "write_bytes_per_s": 6},
        {"name": "host", "bytes": 9, "reason": "no memory"},
    ]  # fmt: skip


async def test_capacity_of_an_engine_that_is_away_says_when_to_ask_again():
    engine = ScriptedEngine()
    engine.available = False
    response = await get("/health/capacity", engine)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_restarted"
    assert response.headers["Retry-After"] == "1"


async def test_models_are_listed_and_found():
    response = await get("/v1/models")
    strict(response.json(), "ListModelsResponse")
    assert [model["id"] for model in response.json()["data"]] == ["fake"]
    strict((await get("/v1/models/fake")).json(), "Model")
    response = await get("/v1/models/gpt-4o-mini")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_the_audit_is_shown():
    audit = (await get("/admin/memory")).json()
    assert (audit["ok"], audit["violations"], audit["leaked_blocks"]) == (True, [], 0)
    assert audit["free_blocks"] + audit["cached_blocks"] + audit["active_blocks"] == 100
    assert audit["arithmetic"] == (
        "weights float32, activations float32, KV float32, attention fake on cpu"
    )
    assert {"device_bytes", "host_bytes", "disk_bytes", "rss_bytes"} <= audit.keys()
    assert audit["sessions"] == {"live": 3, "idle": 2, "parked": 0}
    assert (audit["engine"]["heap_free_bytes"], audit["engine"]["weights_bytes"]) == (1, 1)
    assert (audit["gateway"]["sessions_in_memory"], audit["gateway"]["sockets"]) == (3, 0)


WARM = TurnFinished(
    status="completed",
    text="x",
    usage=TurnUsage(
        reused_tokens=32, new_tokens=4, output_tokens=3, kv_bytes=4096, ttft_ms=20.0, total_ms=60.0
    ),
)
CUT = TurnFinished(status="incomplete", text="", usage=TurnUsage(new_tokens=4), reason="cancelled")


def samples(text):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_tell_turns_and_the_moment():
    response = await get("/metrics", turns=[WARM, CUT])
    assert response.headers["Content-Type"].startswith("text/plain")
    found = samples(response.text)
    vllm = (("engine", "0"), ("model_name", "fake"))
    for key, value in {
        ("sessiond_turns_total", ("outcome", "completed")): 1,
        ("sessiond_turns_total", ("outcome", "cancelled")): 1,
        ("sessiond_time_to_first_token_seconds_count", ("path", "warm")): 1,
        ("sessiond_inter_token_latency_seconds_sum",): 0.75,
        ("sessiond_inter_token_latency_seconds_count",): 39,
        ("sessiond_turn_duration_seconds_count",): 2,
        ("sessiond_queue_time_seconds_count",): 2,
        ("sessiond_turn_kv_bytes_sum",): 4096,
        ("sessiond_websocket_connections",): 0,
        ("sessiond_engine_restarts_total",): 0,
        ("sessiond_leaked_blocks",): 0,
        ("sessiond_sessions", ("state", "running")): 1,
        ("sessiond_sessions", ("state", "waiting")): 2,
        ("sessiond_kv_blocks", ("state", "free"), ("tier", "device")): 70,
        ("sessiond_kv_bytes", ("tier", "device")): (10 + 20) * 16 * 64,
        ("sessiond_internal_fragmentation_ratio",): pytest.approx(0.25),
        ("sessiond_prefill_tokens_total", ("source", "reused")): 100,
        ("sessiond_generated_tokens_total",): 40,
        ("sessiond_preemptions_total", ("kind", "recompute")): 1,
        ("sessiond_preemptions_total", ("kind", "pause")): 0,
        ("sessiond_kv_demand_ratio",): 0,
        ("sessiond_pressure_warnings_total",): 0,
        **dict.fromkeys(
            (
                ("sessiond_degradations_total", ("step", step))
                for step in (*get_args(DegradationLevel), *get_args(Degradation))
            ),
            0,
        ),
        ("sessiond_draft_tokens_total", ("outcome", "accepted")): 5,
        ("sessiond_draft_tokens_total", ("outcome", "rejected")): 3,
        ("sessiond_evictions_total", ("action", "drop"), ("policy", "lru")): 2,
        ("sessiond_reclaim_seconds_count", ("cause", "finished")): 3,
        ("sessiond_step_seconds_sum",): 0.5,
        ("vllm:num_requests_running", *vllm): 1,
        ("vllm:num_requests_waiting", *vllm): 2,
        ("vllm:kv_cache_usage_perc", *vllm): pytest.approx(0.1),
        ("vllm:prefix_cache_queries_total", *vllm): 160,
        ("vllm:prefix_cache_hits_total", *vllm): 100,
        ("vllm:num_preemptions_total", *vllm): 1,
        ("vllm:spec_decode_num_draft_tokens_total", *vllm): 8,
        ("vllm:spec_decode_num_accepted_tokens_total", *vllm): 5,
        ("vllm:time_to_first_token_seconds_count", *vllm): 1,
        ("vllm:inter_token_latency_seconds_count", *vllm): 39,
    }.items():
        assert found[key] == value, key
    config = [key for key in found if key[0] == "vllm:cache_config_info"]
    assert dict(config[0][1:])["num_gpu_blocks"] == "100"


async def test_a_scrape_tells_what_is_leaked_now_and_what_the_last_audit_found():
    engine = ScriptedEngine()
    engine.stats = structs.replace(STATS, leaked_references=2)
    engine.audit = structs.replace(AUDIT, leaked_blocks=5)
    gateway = gateway_of(SERVICE, engine)
    async with serving(gateway) as served, httpx.AsyncClient(trust_env=False, timeout=60) as http:
        told = [samples((await http.get(f"{served.http_url}/metrics")).text)]
        await gateway.audit_watch.audit()
        told.append(samples((await http.get(f"{served.http_url}/metrics")).text))
    assert [found["sessiond_leaked_blocks",] for found in told] == [2, 5]


async def test_metrics_of_an_engine_that_is_away_have_a_gap_not_a_zero():
    engine = ScriptedEngine()
    engine.available = False
    found = samples((await get("/metrics", engine)).text)
    assert ("sessiond_websocket_connections",) in found
    assert not any(key[0] == "sessiond_kv_blocks" for key in found)


async def test_no_label_names_a_session_or_a_user():
    found = samples((await get("/metrics", turns=[WARM])).text)
    labels = {name for key in found for name, _ in key[1:]}
    assert labels <= {
        "outcome", "path", "tier", "state", "source", "kind", "policy", "action", "cause", "le",
        "reason", "engine", "model_name", "block_size", "num_gpu_blocks", "holder", "step",
        "context", "fidelity", "direction",
    }  # fmt: skip


async def test_n06_a_scrape_tells_a_database_that_is_away_and_when_the_server_started(monkeypatch):
    there = (await get("/metrics")).text.splitlines()
    assert "sessiond_database_available 1.0" in there
    assert "process_start_time_seconds 1.7e+09" in there  # the clock of the test
    monkeypatch.setattr(SERVICE, "database_failure", "no route to the host")
    away = (await get("/metrics")).text
    assert "sessiond_database_available 0.0" in away.splitlines()
    assert "no route" not in away
