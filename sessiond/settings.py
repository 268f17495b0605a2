"""Settings of a server: flags over SESSIOND_* environment over sessiond.toml over defaults."""

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
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


# What Kubernetes sets in each pod for a Service named `sessiond` or `sessiond-…`.
_SERVICE_VARIABLE = re.compile(
    r"SESSIOND_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)",
    re.IGNORECASE,
)
_SERVICE_PORT = re.compile(r"SESSIOND_(\w+_)?PORT", re.IGNORECASE)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://", re.IGNORECASE)


def service_variables(environment: Mapping[str, str]) -> list[str]:
    """Names of the variables that Kubernetes sets for a Service; they are no settings.

    `SESSIOND_PORT` is one only if it holds an address, such as `tcp://10.96.0.1:8080`.
    """
    return sorted(
        name
        for name, value in environment.items()
        if _SERVICE_VARIABLE.fullmatch(name)
        or (_SERVICE_PORT.fullmatch(name) and _SERVICE_ADDRESS.match(value))
    )


class _OwnVariables(EnvSettingsSource):
    """The environment without Kubernetes' service variables."""

    def _load_env_vars(self) -> Mapping[str, str | None]:
        passed_over = {name.lower() for name in service_variables(os.environ)}
        variables = super()._load_env_vars()
        return {name: value for name, value in variables.items() if name not in passed_over}


def data_folder() -> Path:
    """The user's data folder of a server."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "sessiond"


def config_folder() -> Path:
    """The user's folder for what the commands keep between starts."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
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
        description="Model to serve: a name, a .gguf file or a folder with safetensors.",
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on (0 = a free one).")
    allowed_hosts: Names = Field(
        (),
        description="Host names accepted in requests, in addition to `host`.",
    )
    allowed_origins: Names = Field(
        (),
        description="Origins of web pages that may use the server in addition to its own, such "
        "as https://chat.example.",
    )
    auth: Literal["none", "keys"] = Field(
        "none",
        description="Authentication: `none` accepts every caller and serves on loopback only; "
        "`keys` requires API keys, which `sessiond user` creates.",
    )
    db: str = Field(
        default_factory=_default_db,
        pattern=r"^[a-z0-9]+(\+[a-z0-9_]+)?:",
        description="SQLAlchemy URL of the database.",
    )
    db_connections: int = Field(
        10,
        ge=1,
        le=1000,
        description="Maximum number of connections to Postgres. A running turn holds none.",
    )
    db_timeout_s: Seconds = Field(
        15.0,
        description="Postgres transaction timeout in seconds (0 = none). "
        "SQLite waits 5 seconds for a lock.",
    )
    replica: str = Field(
        "auto",
        min_length=1,
        description="Name of this server among the servers on one database, stable across "
        "restarts (`auto` = host name and port).",
    )
    replica_heartbeat_s: Pause = Field(
        5.0,
        description="Interval of this server's heartbeat in the database in seconds. After "
        "three missed intervals other servers may take over its conversations.",
    )

    otlp_traces_endpoint: str = Field(
        "",
        pattern=r"^(https?://.+)?$",
        description="OTLP/HTTP endpoint for traces, such as http://127.0.0.1:4318/v1/traces "
        "(empty = no tracing). Needs the extra `otel`.",
    )

    device: Device = Field("auto", description="Device that runs the model.")
    cpu_threads: int = Field(
        0, ge=0, le=1024, description="Number of compute threads on a CPU (0 = all usable cores)."
    )
    dtype: Dtype = Field("auto", description="Data type of activations.")
    weights: Weights = Field(
        "auto",
        description="Weight format: `native` keeps the file's quantisation, `dequantized` "
        "expands the weights at load.",
    )
    weights_offload_layers: int = Field(
        0,
        ge=0,
        description="Number of layers whose weights stay in main memory. Each is copied to the "
        "device one layer ahead.",
    )
    kv_cache_dtype: KvDtype = Field("auto", description="Data type of the KV cache.")
    attention_backend: AttentionName = Field("auto", description="Backend that computes attention.")
    block_size: int = Field(16, ge=1, le=1024, description="Tokens per KV block.")
    kv_cache_memory: ByteSize = Field(
        0, ge=0, description="Size of the KV pool, such as 2GiB (0 = derived from free memory)."
    )
    gpu_memory_utilization: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Share of the GPU's memory that is free at start (or of its instance or "
        "limit) for weights, steps, graphs and KV. vLLM takes the share of the "
        "total memory.",
    )
    cuda_graphs: CudaGraphs = Field(
        "auto",
        description="CUDA graphs for decode steps, where the attention backend allows them.",
    )
    cuda_graph_sizes: str = Field(
        "", description="Batch sizes of the CUDA graphs, such as 1,2,4,8 (empty = automatic)."
    )
    max_model_len: int = Field(
        0,
        ge=0,
        description="Maximum context length in tokens (0 = the model's limit, or what fits).",
    )
    max_num_seqs: int = Field(32, ge=1, description="Maximum number of turns that run at once.")
    max_num_batched_tokens: int = Field(
        512, ge=1, description="Maximum number of tokens in one step."
    )
    target_inter_token_ms: Milliseconds = Field(
        100.0,
        description="Target for the time between two tokens of a reply while other prompts are "
        "prefilled, in milliseconds (0 = none).",
    )
    num_speculative_tokens: int = Field(
        7,
        ge=0,
        le=MAX_SPECULATIVE_TOKENS,
        description="Maximum number of draft tokens per reply and step (0 = no speculation). "
        "Drafts come from the preceding text and never change a reply.",
    )
    max_queue: int = Field(1024, ge=0, description="Maximum number of turns that wait to run.")
    demand_high_watermark: Watermark = Field(
        16.0,
        description="KV demand of running and waiting turns, in pools, above which new turns "
        "are refused with 429 (0 = no limit).",
    )
    demand_warn_watermark: Watermark = Field(
        0.9,
        description="KV demand of running and waiting turns, in pools, at which a warning is "
        "logged (0 = never).",
    )
    max_preemptions: int = Field(
        3,
        ge=0,
        description="Maximum number of preemptions of one turn. After that the turn waits until "
        "it can run without preemption, or its reply is cut.",
    )
    enable_prefix_caching: bool = Field(True, description="Reuse KV blocks of equal prefixes.")
    retain_kv: bool = Field(True, description="Keep a session's KV between its turns.")
    idle_prefill: bool = Field(
        True, description="Prefill the start of the next turn while nothing else runs."
    )

    context_policy: str = Field(
        "sliding_window",
        description="Context policy of conversations that exceed the context length, with "
        "optional parameters, such as last_turns:turns=30. Requests, sessions and "
        "users may set another.",
    )
    context_fidelity: Literal["exact", "shifted"] = Field(
        "exact",
        description="Treatment of the remaining KV after a trim: `exact` recomputes it, "
        "`shifted` keeps it.",
    )
    max_replay_tokens: int = Field(
        16384,
        ge=0,
        description="Longest history in tokens that is recomputed when the KV of a shifted "
        "context is lost. A longer one is rebuilt as exact.",
    )
    placement_policy: str = Field(
        "lru",
        min_length=1,
        description="Policy that orders the eviction of idle sessions' KV: `lru`, `ttl`, "
        "`priority`, `cost_aware`, or one from an installed package.",
    )
    kv_low_watermark: float = Field(
        0.95,
        ge=0,
        le=1,
        description="Share of the pool at which the eviction of idle sessions stops.",
    )
    kv_high_watermark: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the pool at which the eviction of idle sessions starts (1 = only "
        "when a turn needs the blocks).",
    )
    max_resident_blocks: int = Field(
        0, ge=0, description="Maximum number of KV blocks of one session (0 = no limit)."
    )
    max_user_resident_blocks: int = Field(
        0, ge=0, description="Maximum number of KV blocks of one user (0 = no limit)."
    )

    host_tier_size: ByteSize = Field(
        0,
        ge=0,
        description="Main memory for KV evicted from the device, such as 4GiB (0 = no host "
        "tier). On a CPU device the pool is in the same memory.",
    )
    disk_tier_size: ByteSize = Field(
        2 * 2**30,
        ge=0,
        description="Disk space for KV of idle or disconnected sessions, such as 2GiB (0 = no "
        "disk tier). The KV survives a restart.",
    )
    disk_tier_path: str = Field(
        default_factory=_default_tier_path,
        min_length=1,
        description="Folder of the disk tier. One server at a time may use it.",
    )

    default_max_output_tokens: int = Field(
        1024, ge=1, description="Maximum reply length in tokens when a request sets none."
    )
    ignore_eos: bool = Field(
        False,
        description="Continue each reply to its length limit (for load tests).",
    )
    step_timeout_s: Seconds = Field(
        300.0,
        description="Maximum duration of an engine step in seconds (0 = no limit). An engine "
        "that exceeds it is killed and restarted.",
    )
    turn_timeout: Seconds = Field(
        600.0, description="Maximum duration of a turn in seconds (0 = no limit)."
    )
    queue_timeout: Seconds = Field(
        60.0,
        description="Maximum time that a turn waits before it runs, in seconds (0 = no limit).",
    )
    http_hold_s: Seconds = Field(
        60.0, description="Time for which a session without a socket keeps its KV, in seconds."
    )
    session_ttl: Seconds = Field(
        0.0,
        description="Time after which an unused session is deleted with its text, in seconds (0 "
        "= never). Attached and held sessions are not deleted.",
    )
    idempotency_ttl_s: Seconds = Field(
        86400.0, description="Lifetime of an idempotency key in seconds."
    )
    replay_events: int = Field(
        4096,
        ge=16,
        description="Maximum number of events kept per turn for clients that reconnect.",
    )
    replay_memory: ByteSize = Field(
        2**24,
        ge=0,
        description="Memory for events of ended turns, such as 16MiB. The oldest are dropped "
        "first.",
    )
    replay_ttl_s: Seconds = Field(
        300.0, description="Time for which a turn's events are kept after its end, in seconds."
    )
    drain_timeout_s: Seconds = Field(
        30.0, description="Time for which running turns may continue after SIGTERM, in seconds."
    )
    max_frame_bytes: ByteSize = Field(
        MAX_FRAME_BYTES, ge=1024, description="Maximum size of a client's message, such as 1MiB."
    )
    ping_interval_s: Pause = Field(
        PING_INTERVAL_S, description="Interval of pings on a silent socket in seconds."
    )
    ping_timeout_s: Pause = Field(
        PING_TIMEOUT_S,
        description="Time without a pong after which a socket is closed, in seconds.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- the base class's signature
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- the same
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Sources in order of precedence: flags, environment, file."""
        variables = _OwnVariables(settings_cls)
        return init_settings, variables, TomlConfigSettingsSource(settings_cls, config_file())

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
