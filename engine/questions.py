"""What may be asked of an engine, and its answers."""

from typing import Literal

import msgspec

from engine.histogram import Buckets
from engine.ids import SessionId
from engine.process_memory import ProcessMemory
from engine.tier_reports import TierStats

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
"""Why a session's KV was cut or given back."""


class GetStats(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask for the pool's and the loop's numbers."""


class GetAudit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask for a leak audit."""


class GetProcess(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask what the engine's process holds, part by part. Takes milliseconds."""


class GetContext(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask what one session holds."""

    session: SessionId


class GetContexts(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask what several sessions hold, without their page tables."""

    sessions: tuple[SessionId, ...]


class GetResidency(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask which of the sessions hold how much of the device's pool.

    The answer is about the first so many of them as keep no step waiting, and one at least.
    """

    sessions: tuple[SessionId, ...]


class GetPool(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask what each block of the device's pool is, and whose."""


Query = GetStats | GetAudit | GetProcess | GetContext | GetContexts | GetResidency | GetPool


class PageView(msgspec.Struct, frozen=True, kw_only=True):
    """One page-table entry as an operator sees it."""

    block: int
    first: int
    last: int
    base: int
    references: int
    hashed: bool


class ContextView(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one session holds. An unknown session has no tokens and `known` false.

    `host_blocks` and `disk_blocks` are copies there of full blocks, on the device or not.
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
    """The answers of `GetContexts`, in its order; their `page_table` is empty."""

    contexts: list[ContextView]


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Gauges of now and `*_total` counters since start. free + cached + active = total.

    `parked` of the `contexts` have KV in tiers only, `holding` have some on the device;
    `waiting_parked` and `waiting_holding` of these have a turn that waits. `running_blocks` of the
    active ones are those of turns that run, a shared one once. `kept_tokens` have KV on the device,
    a token once for each session that has it; `running_tokens` of them are those of running turns.
    `leaked_references`: references to blocks that no page table and no move has. `pauses_total`:
    turns that gave up their seat and kept their blocks.
    """

    total_blocks: int
    free_blocks: int
    cached_blocks: int
    active_blocks: int
    running: int
    waiting: int
    contexts: int
    holding: int = 0
    parked: int = 0
    waiting_holding: int = 0
    waiting_parked: int = 0
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
    """Result of a leak audit: every broken invariant in words, and the sums it looked at."""

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
    """Bytes of KV on the device by session; a shared block is divided among those that share it.

    Of the first `looked_at` that were named, without those that hold nothing.
    """

    kv_bytes: dict[SessionId, float]
    looked_at: int


class PoolMap(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Each block of the device's pool, by its number.

    `states`: a letter of `BLOCK_STATES` per block. `owners`: a little-endian int32 per block, the
    index in `sessions` of one that refers to it, or -1. A block that is being written to a tier or
    filled from one is moving, whoever else refers to it.
    """

    states: bytes
    owners: bytes
    sessions: list[SessionId]


BLOCK_STATES = {"free": "f", "cached": "c", "active": "a", "shared": "s", "moving": "m"}

Answer = (
    EngineStats | AuditReport | ProcessMemory | ContextView | ContextViews | Residency | PoolMap
)
