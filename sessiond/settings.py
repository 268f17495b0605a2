"""Settings of a server: flags over SESSIOND_* environment over sessiond.toml over defaults."""

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from engine.config import (
    MAX_SPECULATIVE_TOKENS,
    AttentionName,
    CudaGraphs,
    Device,
    Dtype,
    EngineConfig,
    KvDtype,
    Weights,
)
from engine.errors import ConfigError
from engine.files.catalog import DEFAULT_MODEL
from engine.system.byte_size import parse_bytes

ENV_PREFIX = "SESSIOND_"
CONFIG_FILE_VARIABLE = "SESSIOND_CONFIG"
MAX_FRAME_BYTES = 2**20
PING_INTERVAL_S = 15.0
PING_TIMEOUT_S = 20.0


def config_file() -> Path:
    """Path of the settings file, which may not exist."""
    return Path(os.environ.get(CONFIG_FILE_VARIABLE) or "sessiond.toml")


def data_folder() -> Path:
    """The user's data folder of a server."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "sessiond"


def _default_db() -> str:
    return f"sqlite+aiosqlite:///{data_folder() / 'sessiond.db'}"


def _default_tier_path() -> str:
    return str(data_folder() / "kv")


def _read_bytes(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


def _read_list(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


ByteSize = Annotated[int, BeforeValidator(_read_bytes, json_schema_input_type=str)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_read_list)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Watermark = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Pause = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?", re.IGNORECASE)


class Settings(BaseSettings):
    """All settings of `sessiond serve`, read by `sessiond.setting_errors.load_settings`.

    Raises:
        pydantic.ValidationError: a value can't be read, or a name is unknown.
        ConfigError: values that exclude each other.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", frozen=True, validate_default=False
    )

    model: str = Field(
        DEFAULT_MODEL,
        min_length=1,
        description="Model: a name, a .gguf file or a folder with safetensors.",
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    allowed_hosts: Names = Field(
        (),
        description="Host names accepted in requests, in addition to `host`.",
    )
    allowed_origins: Names = Field(
        (),
        description="Origins of web pages, such as https://chat.example, that may use the server "
        "in addition to its own pages.",
    )
    auth: Literal["none", "keys"] = Field(
        "none",
        description="Authentication: `none` (everyone, on this machine's loopback only) or `keys` "
        "(API keys made by `sessiond user`, on any address).",
    )
    db: str = Field(
        default_factory=_default_db,
        pattern=r"^[a-z0-9]+(\+[a-z0-9_]+)?:",
        description="Database: a SQLAlchemy URL.",
    )
    db_connections: int = Field(
        10,
        ge=1,
        le=1000,
        description="Maximum connections to Postgres; a running turn does not hold one.",
    )
    db_timeout_s: Seconds = Field(
        15.0,
        description="Postgres transaction timeout in seconds (0 = none). "
        "SQLite waits 5 seconds for a lock.",
    )
    replica: str = Field(
        "auto",
        min_length=1,
        description="Name of this server among those on one database, stable across restarts; "
        "`auto`: host name and port.",
    )
    replica_heartbeat_s: Pause = Field(
        5.0,
        description="Seconds between heartbeats of this server in the database; after three "
        "intervals without one, other servers may take over its conversations.",
    )

    otlp_traces_endpoint: str = Field(
        "",
        pattern=r"^(https?://.+)?$",
        description="Endpoint for a trace of each turn (OTLP over HTTP), such as "
        "http://127.0.0.1:4318/v1/traces; empty disables tracing. Needs the extra `otel`.",
    )

    device: Device = Field("auto", description="Where the model runs.")
    cpu_threads: int = Field(
        0, ge=0, le=1024, description="Compute threads on a CPU; 0 uses all usable ones."
    )
    dtype: Dtype = Field("auto", description="Number format of activations.")
    weights: Weights = Field(
        "auto", description="Weight format: quantised as in the file, or dequantised at load."
    )
    weights_offload_layers: int = Field(
        0,
        ge=0,
        description="Layers whose weights stay in main memory and are copied one layer ahead.",
    )
    kv_cache_dtype: KvDtype = Field("auto", description="Number format of the KV cache.")
    attention_backend: AttentionName = Field("auto", description="Attention backend.")
    block_size: int = Field(16, ge=1, le=1024, description="Tokens per KV block.")
    kv_cache_memory: ByteSize = Field(
        0, ge=0, description="Size of the KV pool, such as 2GiB; 0 derives it from free memory."
    )
    gpu_memory_utilization: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Share of the free memory of the GPU (or of its instance or limit) at start "
        "that weights, steps, graphs and KV may use (vLLM: share of the total memory).",
    )
    cuda_graphs: CudaGraphs = Field(
        "auto",
        description="Capture decode steps as CUDA graphs where the attention backend allows it.",
    )
    cuda_graph_sizes: str = Field(
        "", description="Batch sizes of CUDA graphs, such as 1,2,4,8; empty: automatic."
    )
    max_model_len: int = Field(
        0, ge=0, description="Maximum context length in tokens; 0 uses the model's, or what fits."
    )
    max_num_seqs: int = Field(32, ge=1, description="Maximum turns that run at the same time.")
    max_num_batched_tokens: int = Field(512, ge=1, description="Maximum tokens of one step.")
    target_inter_token_ms: Milliseconds = Field(
        100.0,
        description="Longest time between two tokens of a reply while other prompts are "
        "prefilled, in milliseconds; 0 sets no limit.",
    )
    num_speculative_tokens: int = Field(
        7,
        ge=0,
        le=MAX_SPECULATIVE_TOKENS,
        description="Maximum draft tokens per reply and step, taken from the preceding text and "
        "verified in one step where that is faster; replies do not change. "
        "0 disables speculation.",
    )
    max_queue: int = Field(1024, ge=0, description="Maximum turns that wait to run.")
    demand_high_watermark: Watermark = Field(
        16.0,
        description="New turns are refused (429) while running and waiting turns need more KV than "
        "this many pools; 0 sets no limit.",
    )
    demand_warn_watermark: Watermark = Field(
        0.9,
        description="A warning is logged when running and waiting turns need this many pools of "
        "KV; 0 disables it.",
    )
    max_preemptions: int = Field(
        3,
        ge=0,
        description="Maximum preemptions of one turn; after that it waits until it can't be "
        "preempted, or its reply is cut.",
    )
    enable_prefix_caching: bool = Field(True, description="Reuse KV blocks of equal prefixes.")
    retain_kv: bool = Field(True, description="Keep a session's KV between its turns.")
    idle_prefill: bool = Field(
        True, description="Prefill the start of the next turn while nothing else runs."
    )

    context_policy: str = Field(
        "sliding_window",
        description="Context policy of conversations that exceed the context length, unless a "
        "request, session or user sets another; parameters are optional, such as "
        "last_turns:turns=30.",
    )
    context_fidelity: Literal["exact", "shifted"] = Field(
        "exact",
        description="KV of the remaining context after a trim: recomputed (exact) or kept "
        "(shifted).",
    )
    max_replay_tokens: int = Field(
        16384,
        ge=0,
        description="Longest history, in tokens, that is recomputed when KV of a shifted "
        "context is lost; a longer one is rebuilt as exact.",
    )
    placement_policy: str = Field(
        "lru",
        min_length=1,
        description="Policy that orders the eviction of idle sessions' KV: `lru`, `ttl`, "
        "`priority`, `cost_aware`, or one that an installed package adds.",
    )
    kv_low_watermark: float = Field(
        0.95,
        ge=0,
        le=1,
        description="Share of the pool down to which idle sessions are evicted.",
    )
    kv_high_watermark: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the pool above which idle sessions are evicted before their blocks "
        "are needed; at 1 they are evicted only when needed.",
    )
    max_resident_blocks: int = Field(
        0, ge=0, description="Maximum KV blocks of one session; 0 sets no limit."
    )
    max_user_resident_blocks: int = Field(
        0, ge=0, description="Maximum KV blocks of one user; 0 sets no limit."
    )

    host_tier_size: ByteSize = Field(
        0,
        ge=0,
        description="Main memory for KV evicted from the device, such as 4GiB; 0 disables it. On "
        "a CPU it is the same memory as the pool's.",
    )
    disk_tier_size: ByteSize = Field(
        2 * 2**30,
        ge=0,
        description="Disk space for KV of idle or disconnected sessions, such as 2GiB; it survives "
        "a restart. 0 disables it.",
    )
    disk_tier_path: str = Field(
        default_factory=_default_tier_path,
        min_length=1,
        description="Folder of the disk tier; one server at a time.",
    )

    default_max_output_tokens: int = Field(
        1024, ge=1, description="Longest reply, in tokens, when a request sets no limit."
    )
    ignore_eos: bool = Field(
        False,
        description="For load tests: replies run to their limit, past end-of-turn tokens.",
    )
    step_timeout_s: Seconds = Field(
        300.0,
        description="Longest step in seconds; an engine that exceeds it is killed and restarted. "
        "0 sets no limit.",
    )
    turn_timeout: Seconds = Field(
        600.0, description="Maximum duration of a turn, in seconds; 0 sets no limit."
    )
    queue_timeout: Seconds = Field(
        60.0, description="Maximum wait of a turn before it runs, in seconds; 0 sets no limit."
    )
    http_hold_s: Seconds = Field(
        60.0, description="How long a session without a socket keeps its KV, in seconds."
    )
    session_ttl: Seconds = Field(
        0.0,
        description="Seconds after which a session that is neither used nor held is deleted with "
        "its text; 0 keeps sessions until a client deletes them.",
    )
    idempotency_ttl_s: Seconds = Field(
        86400.0, description="Lifetime of an idempotency key, in seconds."
    )
    replay_events: int = Field(
        4096, ge=16, description="Maximum events kept per turn for clients that reconnect."
    )
    replay_memory: ByteSize = Field(
        2**24,
        ge=0,
        description="Memory for events of ended turns, such as 16MiB; the oldest are dropped "
        "first.",
    )
    replay_ttl_s: Seconds = Field(
        300.0, description="How long the events of a turn are kept after its end, in seconds."
    )
    drain_timeout_s: Seconds = Field(
        30.0, description="How long running turns may continue after SIGTERM, in seconds."
    )
    max_frame_bytes: ByteSize = Field(
        MAX_FRAME_BYTES, ge=1024, description="Maximum size of a client message, such as 1MiB."
    )
    ping_interval_s: Pause = Field(
        PING_INTERVAL_S, description="Seconds between pings on a silent socket."
    )
    ping_timeout_s: Pause = Field(
        PING_TIMEOUT_S, description="Seconds without a pong after which a socket is closed."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- the base class's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Sources in order of precedence: flags, environment, file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_file())

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.auth == "none" and not _is_loopback(self.host):
            allowed = "127.0.0.1, ::1 or localhost while auth is none (--auth keys allows any)"
            raise ConfigError("host", self.host, allowed)
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    "allowed_origins", origin, "https://HOST or http://HOST, optionally with :PORT"
                )
        self.engine_config()
        return self

    def engine_config(self) -> EngineConfig:
        """The part of the settings that the engine needs."""
        return EngineConfig(
            model=self.model,
            device=self.device,
            cpu_threads=self.cpu_threads,
            dtype=self.dtype,
            weights=self.weights,
            kv_cache_dtype=self.kv_cache_dtype,
            attention_backend=self.attention_backend,
            weights_offload_layers=self.weights_offload_layers,
            block_size=self.block_size,
            gpu_memory_utilization=self.gpu_memory_utilization,
            cuda_graphs=self.cuda_graphs,
            cuda_graph_sizes=self.cuda_graph_sizes,
            kv_cache_memory=self.kv_cache_memory,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            target_inter_token_ms=self.target_inter_token_ms,
            num_speculative_tokens=self.num_speculative_tokens,
            max_num_waiting=self.max_queue,
            max_preemptions=self.max_preemptions,
            enable_prefix_caching=self.enable_prefix_caching,
            retain_kv=self.retain_kv,
            idle_prefill=self.idle_prefill,
            max_replay_tokens=self.max_replay_tokens,
            placement_policy=self.placement_policy,
            kv_low_watermark=self.kv_low_watermark,
            kv_high_watermark=self.kv_high_watermark,
            max_resident_blocks=self.max_resident_blocks,
            max_user_resident_blocks=self.max_user_resident_blocks,
            host_tier_size=self.host_tier_size,
            disk_tier_size=self.disk_tier_size,
            disk_tier_path=self.disk_tier_path,
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
