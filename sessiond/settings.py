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

from engine.byte_size import parse_bytes
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

ENV_PREFIX = "SESSIOND_"
CONFIG_FILE_VARIABLE = "SESSIOND_CONFIG"
MAX_FRAME_BYTES = 2**20
PING_INTERVAL_S = 15.0
PING_TIMEOUT_S = 20.0


def config_file() -> Path:
    """Where settings are read from, if there is such a file."""
    return Path(os.environ.get(CONFIG_FILE_VARIABLE) or "sessiond.toml")


def data_folder() -> Path:
    """The user's folder for what a server keeps."""
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
    """All settings of `sessiond serve`. `sessiond.setting_errors.load_settings` makes them.

    Raises:
        pydantic.ValidationError: a value can't be read, or a name is unknown.
        ConfigError: values don't go together.
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
        description="Host names, beside the one listened on, that requests may be addressed to.",
    )
    allowed_origins: Names = Field(
        (),
        description="Origins of web pages, as in https://chat.example, that may use the server "
        "beside pages of its own address.",
    )
    auth: Literal["none", "keys"] = Field(
        "none",
        description="Who may come in: `none` (everyone) only on this machine's loopback, `keys` "
        "(whoever has a key of `sessiond user`) anywhere.",
    )
    db: str = Field(
        default_factory=_default_db,
        pattern=r"^[a-z0-9]+(\+[a-z0-9_]+)?:",
        description="Database: a SQLAlchemy URL.",
    )
    db_connections: int = Field(
        10, ge=1, le=1000, description="Most connections to a Postgres; none is held by a turn."
    )
    db_timeout_s: Seconds = Field(
        15.0,
        description="A transaction that a Postgres does not answer for so long fails, in seconds; "
        "0 waits for ever. SQLite waits 5 seconds for a lock.",
    )
    replica: str = Field(
        "auto",
        min_length=1,
        description="Name of this server among those on one database, the same after a restart; "
        "`auto`: host name and port.",
    )
    replica_heartbeat_s: Pause = Field(
        5.0,
        description="How often a server tells those on the same database that it lives; after "
        "three times as long without a word its conversations are free.",
    )

    otlp_traces_endpoint: str = Field(
        "",
        pattern=r"^(https?://.+)?$",
        description="Where to send a trace of each turn (OTLP over HTTP), as in "
        "http://127.0.0.1:4318/v1/traces; empty: none is made. Needs the extra `otel`.",
    )

    device: Device = Field("auto", description="Where the model runs.")
    cpu_threads: int = Field(
        0, ge=0, le=1024, description="Threads that compute on a CPU; 0 takes what is usable."
    )
    dtype: Dtype = Field("auto", description="Number format of activations.")
    weights: Weights = Field(
        "auto",
        description="Weights as quantised as the file has them (`native`), or dequantised at load; "
        "`auto` is native on the native kernels, dequantized where torch runs the model.",
    )
    weights_offload_layers: int = Field(
        0,
        ge=0,
        description="Layers whose weights stay in main memory and come to the GPU one ahead of "
        "their use, for models that do not fit.",
    )
    kv_cache_dtype: KvDtype = Field("auto", description="Number format of the KV cache.")
    attention_backend: AttentionName = Field(
        "auto", description="What computes attention; `auto` takes the best that can."
    )
    block_size: int = Field(16, ge=1, le=1024, description="Tokens per KV block.")
    kv_cache_memory: ByteSize = Field(
        0, ge=0, description="Size of the KV pool, as in 2GiB; 0 sizes it from free memory."
    )
    gpu_memory_utilization: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Share, for weights, steps, graphs and KV, of the memory that a GPU, or the "
        "instance or limit given to this server, has free at start (vLLM: of all it has).",
    )
    cuda_graphs: CudaGraphs = Field(
        "auto", description="Capture decode on a GPU as graphs where the attention allows it."
    )
    cuda_graph_sizes: str = Field(
        "", description="Turns in a step that graphs are made for, as in 1,2,4,8; empty chooses."
    )
    max_model_len: int = Field(
        0, ge=0, description="Longest context in tokens; 0 takes the model's, or what fits."
    )
    max_num_seqs: int = Field(32, ge=1, description="Turns that generate at the same time.")
    max_num_batched_tokens: int = Field(512, ge=1, description="Tokens that one step computes.")
    target_inter_token_ms: Milliseconds = Field(
        100.0,
        description="Longest time between two tokens of a reply while others' prompts are "
        "computed, in milliseconds; 0 sets no bound.",
    )
    num_speculative_tokens: int = Field(
        7,
        ge=0,
        le=MAX_SPECULATIVE_TOKENS,
        description="Tokens of a reply guessed from the text before it and checked in one step, "
        "where that is faster; no reply changes. 0 turns it off.",
    )
    max_queue: int = Field(1024, ge=0, description="Turns that may wait for a place.")
    demand_high_watermark: Watermark = Field(
        16.0,
        description="New turns are refused (429) while those that run or wait want more KV than so "
        "many pools; 0 sets no bound.",
    )
    demand_warn_watermark: Watermark = Field(
        0.9,
        description="The log warns when turns that run or wait want as much KV as so many pools; "
        "0: never.",
    )
    max_preemptions: int = Field(
        3,
        ge=0,
        description="How often a turn may lose its memory to others; after that it waits until it "
        "can't happen again, or its reply is cut.",
    )
    enable_prefix_caching: bool = Field(
        True, description="Reuse KV blocks that begin with the same tokens."
    )
    retain_kv: bool = Field(True, description="Keep a session's KV between its turns.")
    idle_prefill: bool = Field(
        True, description="Compute what a next turn begins with while nothing else runs."
    )

    context_policy: str = Field(
        "sliding_window",
        description="What becomes of conversations that outgrow their room, unless a request, "
        "session or user says otherwise: a policy, maybe with parameters, as in "
        "last_turns:turns=30.",
    )
    context_fidelity: Literal["exact", "shifted"] = Field(
        "exact",
        description="How the KV of what stays is made: computed anew, or kept as it is.",
    )
    max_replay_tokens: int = Field(
        16384,
        ge=0,
        description="Longest history, in tokens, that is computed again when KV of a shifted "
        "context is lost; beyond that it is rebuilt as exact.",
    )
    placement_policy: str = Field(
        "lru",
        min_length=1,
        description="Which idle sessions' KV gives way first: `lru`, `ttl`, `priority`, "
        "`cost_aware`, or one that an installed package adds.",
    )
    kv_low_watermark: float = Field(
        0.95,
        ge=0,
        le=1,
        description="Share of the pool that sessions may still hold when idle ones have given way.",
    )
    kv_high_watermark: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the pool above which idle sessions give way before their blocks are "
        "needed; at 1 they give way only then.",
    )
    max_resident_blocks: int = Field(
        0, ge=0, description="Largest number of KV blocks of one session; 0 sets no limit."
    )
    max_user_resident_blocks: int = Field(
        0, ge=0, description="Largest number of KV blocks of one user; 0 sets no limit."
    )

    host_tier_size: ByteSize = Field(
        0,
        ge=0,
        description="Main memory for KV that leaves the device, as in 4GiB; 0: none. On a CPU it "
        "is the same memory as the pool's.",
    )
    disk_tier_size: ByteSize = Field(
        2 * 2**30,
        ge=0,
        description="Disk space for KV of sessions that are idle or not there, as in 2GiB, so that "
        "they go on after a restart without being computed again; 0: none.",
    )
    disk_tier_path: str = Field(
        default_factory=_default_tier_path,
        min_length=1,
        description="Folder of the disk tier; one server at a time.",
    )

    default_max_output_tokens: int = Field(
        1024, ge=1, description="Longest reply when a request does not say."
    )
    ignore_eos: bool = Field(
        False,
        description="For load tests: every reply goes on to its limit, past end-of-turn tokens.",
    )
    step_timeout_s: Seconds = Field(
        300.0,
        description="An engine whose step takes longer hangs: it is killed and started again, in "
        "seconds; 0 lets it hang.",
    )
    turn_timeout: Seconds = Field(
        600.0, description="Longest time of a turn, in seconds; 0 sets no limit."
    )
    queue_timeout: Seconds = Field(
        60.0, description="Longest wait for a place, in seconds; 0 sets no limit."
    )
    http_hold_s: Seconds = Field(
        60.0, description="How long a session without a socket keeps its KV, in seconds."
    )
    session_ttl: Seconds = Field(
        0.0,
        description="Sessions that nobody uses or holds for so long are deleted with their text, "
        "in seconds; 0 keeps them until they are deleted.",
    )
    idempotency_ttl_s: Seconds = Field(
        86400.0, description="How long an idempotency key stands for its request, in seconds."
    )
    replay_events: int = Field(
        4096, ge=16, description="Events of one turn that are kept for clients that come back."
    )
    replay_memory: ByteSize = Field(
        2**24,
        ge=0,
        description="Memory for what ended turns have told, as in 16MiB; the oldest give way.",
    )
    replay_ttl_s: Seconds = Field(
        300.0, description="How long what a turn has told is kept after its end, in seconds."
    )
    drain_timeout_s: Seconds = Field(
        30.0, description="How long running turns may go on after SIGTERM, in seconds."
    )
    max_frame_bytes: ByteSize = Field(
        MAX_FRAME_BYTES, ge=1024, description="Largest message of a client, as in 1MiB."
    )
    ping_interval_s: Pause = Field(
        PING_INTERVAL_S, description="Pause between pings on a silent socket."
    )
    ping_timeout_s: Pause = Field(
        PING_TIMEOUT_S, description="A socket without a pong for so long is cut."
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
        """Flags, then environment, then the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_file())

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.auth == "none" and not _is_loopback(self.host):
            allowed = "127.0.0.1, ::1 or localhost while auth is none; --auth keys allows any"
            raise ConfigError("host", self.host, allowed)
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    "allowed_origins", origin, "https://HOST or http://HOST, maybe with :PORT"
                )
        self.engine_config()
        return self

    def engine_config(self) -> EngineConfig:
        """What the engine is told."""
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
