"""Engine settings at start. Resolves to a new value; is never changed in place."""

from typing import Literal

import msgspec

from engine.errors import ConfigError
from policies.registry import placement_names

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KvDtype = Literal["auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3", "int8"]
Weights = Literal["auto", "native", "dequantized"]
AttentionName = Literal["auto", "native", "torch", "triton", "flash"]
CudaGraphs = Literal["auto", "off"]

MAX_SPECULATIVE_TOKENS = 32


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one engine. Names follow vLLM where the meaning is the same.

    Sizes are in bytes, tokens or blocks as the name says. 0 means "choose"; for
    `target_inter_token_ms` and `max_*_blocks` it means "no limit", for tier sizes "no tier".
    Watermarks are shares of the pool. `disk_tier_path` is a folder.
    """

    model: str
    device: Device = "auto"
    dtype: Dtype = "auto"
    weights: Weights = "auto"
    kv_cache_dtype: KvDtype = "auto"
    attention_backend: AttentionName = "auto"
    weights_offload_layers: int = 0
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    cuda_graphs: CudaGraphs = "auto"
    cuda_graph_sizes: str = ""
    kv_cache_memory: int = 0
    max_model_len: int = 0
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    target_inter_token_ms: float = 100.0
    max_num_waiting: int = 1024
    max_preemptions: int = 3
    num_speculative_tokens: int = 7
    enable_prefix_caching: bool = True
    retain_kv: bool = True
    cpu_threads: int = 0
    idle_prefill: bool = True
    max_replay_tokens: int = 16384
    placement_policy: str = "lru"
    kv_low_watermark: float = 0.95
    kv_high_watermark: float = 1.0
    max_resident_blocks: int = 0
    max_user_resident_blocks: int = 0
    host_tier_size: int = 0
    disk_tier_size: int = 0
    disk_tier_path: str = ""

    def __post_init__(self) -> None:
        """Refuse invalid values.

        Raises:
            ConfigError: the message names the setting, its value and the allowed values.
        """
        _need("block_size", self.block_size, 1 <= self.block_size <= 1024, "1 to 1024 tokens")
        _need(
            "gpu_memory_utilization",
            self.gpu_memory_utilization,
            0 < self.gpu_memory_utilization <= 1,
            "above 0, up to 1",
        )
        _need(
            "kv_cache_dtype",
            self.kv_cache_dtype,
            self.kv_cache_dtype != "int8"
            or (
                self.device != "cuda"
                and self.dtype in ("auto", "bfloat16")
                and self.attention_backend in ("auto", "native")
            ),
            "auto, float32, bfloat16, float16 or fp8 where torch runs the model, as with "
            "dtype float32 or float16, device cuda, or an attention_backend other than native",
        )
        _need(
            "cuda_graph_sizes",
            self.cuda_graph_sizes,
            _are_sizes(self.cuda_graph_sizes, self.max_num_seqs),
            f"different numbers from 1 to max_num_seqs ({self.max_num_seqs}), as in 1,2,4,8",
        )
        _need("kv_cache_memory", self.kv_cache_memory, self.kv_cache_memory >= 0, "0 or more bytes")
        _need("max_model_len", self.max_model_len, self.max_model_len >= 0, "0 or more tokens")
        _need("max_num_seqs", self.max_num_seqs, self.max_num_seqs >= 1, "1 or more")
        _need(
            "max_num_batched_tokens",
            self.max_num_batched_tokens,
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_seqs ({self.max_num_seqs}) or more, so that every stream gets its token",
        )
        _need(
            "target_inter_token_ms",
            self.target_inter_token_ms,
            0 <= self.target_inter_token_ms < float("inf"),
            "0 or more milliseconds",
        )
        _need("cpu_threads", self.cpu_threads, 0 <= self.cpu_threads <= 1024, "0 to 1024 threads")
        _need(
            "num_speculative_tokens",
            self.num_speculative_tokens,
            0 <= self.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS,
            f"0 (off) to {MAX_SPECULATIVE_TOKENS} tokens",
        )
        _need("max_replay_tokens", self.max_replay_tokens, self.max_replay_tokens >= 0, "0 or more")
        _need(
            "kv_high_watermark",
            self.kv_high_watermark,
            0 < self.kv_high_watermark <= 1,
            "above 0, up to 1",
        )
        _need(
            "kv_low_watermark",
            self.kv_low_watermark,
            0 <= self.kv_low_watermark <= self.kv_high_watermark,
            f"0 to kv_high_watermark ({self.kv_high_watermark})",
        )
        names = placement_names()
        _need(
            "placement_policy",
            self.placement_policy,
            self.placement_policy in names,
            f"one of {', '.join(names)}",
        )
        for name in ("max_resident_blocks", "max_user_resident_blocks"):
            _need(name, getattr(self, name), getattr(self, name) >= 0, "0 or more blocks")
        for name in ("host_tier_size", "disk_tier_size"):
            _need(name, getattr(self, name), getattr(self, name) >= 0, "0 (none) or more bytes")
        _need(
            "disk_tier_path",
            self.disk_tier_path,
            bool(self.disk_tier_path) or not self.disk_tier_size,
            "a folder, as disk_tier_size is not 0",
        )
        _need("max_preemptions", self.max_preemptions, self.max_preemptions >= 0, "0 or more")
        _need("max_num_waiting", self.max_num_waiting, self.max_num_waiting >= 0, "0 or more")


def _are_sizes(text: str, most: int) -> bool:
    """Whether `text` names different sizes up to `most`, or nothing."""
    parts = [part.strip() for part in text.split(",")] if text else []
    sizes = {int(part) for part in parts if part.isascii() and part.isdigit()}
    return len(sizes) == len(parts) and all(1 <= size <= most for size in sizes)


def _need(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ConfigError(name, value, allowed)
