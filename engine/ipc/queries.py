"""Queries to an engine and their answers, with the reports of its tiers."""

from typing import Literal

import msgspec

from engine.ids import SessionId
from engine.system.histogram import Buckets
from engine.system.process_memory import ProcessMemory

TierName = Literal["host", "disk"]
RestoredFrom = Literal["none", "host", "disk"]


class TierInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A tier below the device; rates in bytes per second, as measured at start.

    `path`: of its file. `reason`: why a requested tier is not available, as text; otherwise both
    are empty.
    """

    name: TierName
    bytes: int
    blocks: int = 0
    read_rate: float = 0.0
    write_rate: float = 0.0
    path: str = ""
    reason: str = ""


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks in one tier below the device, its capacity, and transfers since start.

    `bytes`: space used on its medium now. `refused_blocks_total`: blocks that could not be written,
    or failed their check when read; their KV is recomputed.
    """

    blocks: int
    capacity_blocks: int
    bytes: int
    stored_bytes_total: int
    fetched_bytes_total: int
    store_times: Buckets
    fetch_times: Buckets
    refused_blocks_total: int


KvState = Literal["idle", "parked", "cold"]
"""Where a session's KV is: some on the device; in tiers only; nowhere."""


def kv_state(device_blocks: int, tier_blocks: int) -> KvState:
    """State of a session without a turn, from its blocks: the only rule of it, for all who tell."""
    if device_blocks:
        return "idle"
    return "parked" if tier_blocks else "cold"


ReclaimCause = Literal[
    "finished",
    "max_output_tokens",
    "context_length",
    "memory_pressure",
    "cancelled",
    "deadline",
    "disconnected",
    "queue_timeout",
    "queue_full",
    "internal_error",
    "replaced",
    "truncated",
    "released",
    "closed",
]
"""Reason why a session's KV was cut or freed."""


class GetStats(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query the numbers of the pool and the loop."""


class GetAudit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query a leak audit."""


class GetProcess(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query the memory of the engine's process, part by part. Takes milliseconds."""


class GetContext(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query the state of one session."""

    session: SessionId


class GetContexts(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query the state of several sessions, without their page tables."""

    sessions: tuple[SessionId, ...]


class GetPageKeys(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query the keys of a context's full pages. The engine need not know its session."""

    salt: bytes
    ids: list[int]


class GetStored(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query which pages of several contexts are in tiers; `chains`: their page keys, in order."""

    chains: list[list[bytes]]


class GetResidency(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query the sessions' shares of the device's pool.

    The answer covers the first sessions: at least one, and no more than delay no step.
    """

    sessions: tuple[SessionId, ...]


class GetPool(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query the state and owner of each block of the device's pool."""


Query = (
    GetStats
    | GetAudit
    | GetProcess
    | GetContext
    | GetContexts
    | GetPageKeys
    | GetStored
    | GetResidency
    | GetPool
)


class PageView(msgspec.Struct, frozen=True, kw_only=True):
    """One page-table entry, for operators."""

    block: int
    first: int
    last: int
    base: int
    references: int
    hashed: bool


class ContextView(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """State of one session. An unknown session has no tokens and `known` false.

    `host_blocks` and `disk_blocks` are copies of full blocks in these tiers, on the device or not.
    Of a session without a block on the device only those count that a turn could restore: the
    leading pages that are all in tiers.
    """

    session: SessionId
    known: bool
    running: bool
    tokens: int
    kept_len: int
    blocks: int
    shared_blocks: int
    kv_bytes: int
    page_table: list[PageView]
    host_blocks: int = 0
    disk_blocks: int = 0


class ContextViews(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answers of `GetContexts`, in its order; their `page_table` is empty."""

    contexts: list[ContextView]


class PageKeys(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer of `GetPageKeys`."""

    keys: list[bytes]


class StoredBlocks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer of `GetStored`, in its order: blocks by tier that a turn could restore."""

    blocks: list[dict[str, int]]


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Current gauges, and `*_total` counters since start. free + cached + active = total.

    Of the `contexts` without a turn, `idle` have KV on the device, `parked` in tiers only, the rest
    nowhere: see `kv_state`. `running_blocks` of the
    active ones belong to running turns, a shared one counts once. `kept_tokens` have KV on the
    device, a token counts once for each session that has it; `running_tokens` of them belong to
    running turns. `leaked_references`: references to blocks that no page table and no transfer has.
    `pauses_total`: turns that gave up their running slot and kept their blocks.
    """

    total_blocks: int
    free_blocks: int
    cached_blocks: int
    active_blocks: int
    running: int
    waiting: int
    contexts: int
    idle: int = 0
    parked: int = 0
    running_blocks: int = 0
    running_tokens: int = 0
    kept_tokens: int
    leaked_references: int = 0
    memory_shortages_total: int = 0
    step_times: Buckets = Buckets()
    token_times: Buckets = Buckets()
    generated_tokens_total: int
    reused_tokens_total: int
    restored_tokens_total: int = 0
    recomputed_tokens_total: int
    new_tokens_total: int
    prefix_queries_total: int
    prefix_hits_total: int
    preemptions_total: int
    swapped_preemptions_total: int = 0
    pauses_total: int = 0
    accepted_drafts_total: int
    rejected_drafts_total: int
    placement_policy: str
    degradations_total: dict[str, int] = {}
    evictions_total: dict[str, int]
    reclaim_times: dict[ReclaimCause, Buckets] = {}
    tiers: dict[str, TierStats] = {}


class AuditReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Result of a leak audit: every broken invariant as text, and the totals that were checked."""

    ok: bool
    violations: list[str]
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    active_blocks: int
    leaked_blocks: int
    device_bytes: int
    host_bytes: int = 0
    disk_bytes: int = 0
    rss_bytes: int


class Residency(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Bytes of KV on the device by session; a shared block is divided among its sessions.

    Covers the first `looked_at` sessions of the query, without those that hold nothing.
    """

    kv_bytes: dict[SessionId, float]
    looked_at: int


class PoolMap(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Each block of the device's pool, by its number.

    `states`: a letter of `BLOCK_STATES` per block. `owners`: a little-endian int32 per block, the
    index in `sessions` of one that refers to it, or -1. A block that is being written to a tier or
    filled from one is moving, whatever else refers to it.
    """

    states: bytes
    owners: bytes
    sessions: list[SessionId]


BLOCK_STATES = {"free": "f", "cached": "c", "active": "a", "shared": "s", "moving": "m"}

QueryResult = (
    EngineStats
    | AuditReport
    | ProcessMemory
    | ContextView
    | ContextViews
    | PageKeys
    | StoredBlocks
    | Residency
    | PoolMap
)
