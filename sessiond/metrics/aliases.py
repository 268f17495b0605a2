"""Engine stats under vLLM's metric names, labels and buckets. Pure.

For existing dashboards and the Kubernetes Gateway API inference extension.
"""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from engine.histogram import Buckets
from engine.messages import EngineInfo
from engine.questions import EngineStats
from sessiond.metrics.families import counter, gauge, histogram


def alias_families(stats: EngineStats, info: EngineInfo, first_token: Buckets) -> Iterator[Metric]:
    """`first_token`: seconds to the first token, over both paths."""
    labels = {"model_name": info.model, "engine": "0"}
    used = stats.active_blocks / stats.total_blocks if stats.total_blocks else 0.0
    for name, value in (
        ("num_requests_running", stats.running),
        ("num_requests_waiting", stats.waiting),
        ("kv_cache_usage_perc", used),
    ):
        yield gauge(f"vllm:{name}", f"vLLM's {name}.", value, labels)
    config = {"block_size": str(info.block_size), "num_gpu_blocks": str(info.total_blocks)}
    yield gauge("vllm:cache_config_info", "Size of the pool.", 1, {**config, **labels})
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
