"""A real Prometheus scrapes the server, and is asked what an operator would ask."""

from collections import Counter

import pytest

from tests.observability.scenario import NUM_BLOCKS

pytestmark = [pytest.mark.second, pytest.mark.asyncio(loop_scope="session")]
TYPES = {
    "sessiond_sessions": "gauge", "sessiond_websocket_connections": "gauge",
    "sessiond_kv_blocks": "gauge", "sessiond_kv_bytes": "gauge",
    "sessiond_turns_total": "counter", "sessiond_prefill_tokens_total": "counter",
    "sessiond_generated_tokens_total": "counter",
    "sessiond_time_to_first_token_seconds": "histogram",
    "sessiond_inter_token_latency_seconds": "histogram",
    "sessiond_turn_duration_seconds": "histogram", "sessiond_queue_time_seconds": "histogram",
    "sessiond_turn_kv_bytes": "histogram", "sessiond_reclaim_seconds": "histogram",
    "sessiond_swap_bytes_total": "counter", "sessiond_swap_seconds": "histogram",
    "sessiond_preemptions_total": "counter", "sessiond_evictions_total": "counter",
    "sessiond_degradations_total": "counter", "sessiond_quota_rejections_total": "counter",
    "sessiond_internal_fragmentation_ratio": "gauge", "sessiond_leaked_blocks": "gauge",
    "sessiond_engine_restarts_total": "counter", "sessiond_step_seconds": "histogram",
    "vllm:num_requests_running": "gauge", "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge", "vllm:cache_config_info": "gauge",
    "vllm:prefix_cache_queries_total": "counter", "vllm:prefix_cache_hits_total": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram", "vllm:num_preemptions_total": "counter",
}  # fmt: skip
LABELS = {
    "sessiond_sessions": {"state"}, "sessiond_kv_blocks": {"tier", "state"},
    "sessiond_kv_bytes": {"tier"}, "sessiond_turns_total": {"outcome"},
    "sessiond_prefill_tokens_total": {"source"},
    "sessiond_time_to_first_token_seconds_bucket": {"path", "le"},
    "sessiond_reclaim_seconds_bucket": {"cause", "le"},
    "sessiond_swap_bytes_total": {"direction", "tier"}, "sessiond_swap_seconds_bucket": {"le"},
    "sessiond_preemptions_total": {"kind"}, "sessiond_evictions_total": {"policy", "action"},
    "sessiond_degradations_total": {"step"}, "sessiond_quota_rejections_total": {"reason"},
    "sessiond_leaked_blocks": set(), "sessiond_turn_kv_bytes_bucket": {"le"},
    "vllm:cache_config_info": {"block_size", "num_gpu_blocks", "model_name", "engine"},
    "vllm:num_requests_waiting": {"model_name", "engine"},
    "vllm:time_to_first_token_seconds_bucket": {"model_name", "engine", "le"},
}  # fmt: skip


async def test_names_types_and_labels_are_those_of_the_contract(watched):
    metadata = await watched.prom.ask("metadata")
    told = {name: entries[0]["type"] for name, entries in metadata.items()}
    assert {name: told.get(name) for name in TYPES} == TYPES
    for name, labels in LABELS.items():
        found = await watched.prom.query(name)
        assert found, name
        assert {frozenset(dict(key)) for key in found} == {frozenset(labels)}, name


async def test_kv_per_turn_has_the_p99_that_the_responses_say(watched):
    p99 = "histogram_quantile(0.99, sum by (le) (sessiond_turn_kv_bytes_bucket))"
    said = sorted(response["sessiond"]["kv_bytes"] for response in watched.responses)
    assert await watched.prom.value("sessiond_turn_kv_bytes_count") == len(said)
    assert await watched.prom.value("sessiond_turn_kv_bytes_sum") == sum(said)
    buckets = await watched.prom.query("sessiond_turn_kv_bytes_bucket")
    bounds = sorted(float(dict(key)["le"]) for key in buckets)
    above = next(bound for bound in bounds if bound >= said[-1])
    below = max((bound for bound in bounds if bound < above), default=0)
    assert below < await watched.prom.value(p99) <= above


async def settled(watched):
    """The engine's numbers when a scrape has seen what they are still."""
    stats = None
    while stats != (stats := await watched.running.stats()):
        await watched.prom.scraped_anew()
    return stats


async def test_what_memory_holds_is_what_the_engine_says(watched):
    stats, prom = await settled(watched), watched.prom
    blocks = await prom.query('sum by (state) (sessiond_kv_blocks{tier="device"})')
    assert sum(blocks.values()) == NUM_BLOCKS
    assert blocks[("state", "active"),] == stats.active_blocks > 0
    held = stats.active_blocks * 16
    wasted = await prom.value("sessiond_internal_fragmentation_ratio")
    assert wasted == pytest.approx(max(0, 1 - stats.kept_tokens / held))
    assert await prom.value("sum(sessiond_kv_active_blocks)") == stats.active_blocks
    tokens = 'sum(sessiond_kv_tokens{tier="device",state=~"running|idle"})'
    assert await prom.value(tokens) == stats.kept_tokens
    for tier in ("host", "disk"):
        there = await prom.value(f'sessiond_kv_blocks{{tier="{tier}",state="cached"}}')
        assert there == stats.tiers[tier].blocks > 0
    assert await prom.value("sessiond_leaked_blocks") == 0
    assert await prom.value("sum(sessiond_sessions)") == stats.contexts


async def test_where_kv_came_from_is_what_the_responses_say(watched):
    for source in ("reused", "restored", "recomputed"):
        said = sum(one["sessiond"][f"{source}_tokens"] for one in watched.responses)
        told = await watched.prom.value(f'sessiond_prefill_tokens_total{{source="{source}"}}')
        assert told == said, source
    swapped_in = 'sum by (tier) (sessiond_swap_bytes_total{direction="in"})'
    assert sum((await watched.prom.query(swapped_in)).values()) > 0


async def test_fidelity_and_degradations_are_counted(watched):
    prom = watched.prom
    said = [(one["sessiond"]["context"], one["sessiond"]["fidelity"]) for one in watched.responses]
    assert ("trimmed", "shifted") in said
    told = await prom.query("sessiond_turn_contexts_total")
    found = {(dict(key)["context"], dict(key)["fidelity"]): told[key] for key in told}
    assert {pair: count for pair, count in found.items() if count} == Counter(said)
    assert await prom.value('sessiond_degradations_total{step="refuse_impossible"}') == 1
    evicted = await prom.value("sum(sessiond_evictions_total)")
    assert await prom.value('sessiond_degradations_total{step="evict"}') == evicted > 0


async def test_reclaiming_is_timed_by_cause(watched):
    stats = await settled(watched)
    told = await watched.prom.query("sessiond_reclaim_seconds_count")
    found = {dict(key)["cause"]: count for key, count in told.items() if count}
    assert found == {cause: times.count for cause, times in stats.reclaim_times.items()}
    p99 = "histogram_quantile(0.99, sum by (le) (sessiond_reclaim_seconds_bucket))"
    assert 0 < await watched.prom.value(p99) <= 60
