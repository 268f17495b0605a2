"""Answers to queries about the engine's state, and the map of the pool. Changes nothing."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from engine.core.run_queue import RunQueue
from engine.counters import Counters
from engine.ids import BlockId, SessionId
from engine.ipc.queries import (
    BLOCK_STATES,
    ContextView,
    ContextViews,
    EngineStats,
    PageKeys,
    PageView,
    PoolMap,
    Residency,
    StoredBlocks,
    TierStats,
)
from engine.kv.block_pool import BlockPool
from engine.kv.context import Activity, Context
from engine.kv.executor import Executor
from engine.kv.page_table import PageEntry
from engine.kv.tiers.tiers import Tier

_LETTERS = {state: ord(letter) for state, letter in BLOCK_STATES.items()}


_MOST_BLOCKS = 4096  # examined per residency query: half a millisecond


def engine_stats(
    *,
    memory: Executor,
    counters: Counters,
    queue: RunQueue,
    placement_policy: str,
) -> EngineStats:
    """Current gauges and counters since start. Examines running and waiting turns, no sessions."""
    pool, parked = memory.pool, memory.kv_transfer.parked
    holding = memory.table_stats.holding
    running, waiting = (
        [slot.context for slot in turns] for turns in (queue.running, queue.waiting)
    )
    return EngineStats(
        total_blocks=pool.total,
        free_blocks=pool.free_count,
        cached_blocks=pool.cached_count,
        active_blocks=pool.active_count,
        running=len(queue.running),
        waiting=len(queue.waiting),
        contexts=len(memory.contexts),
        idle=holding - sum(context.table.block_count > 0 for context in [*running, *waiting]),
        parked=len(parked) - sum(one.session in parked for one in [*running, *waiting]),
        running_blocks=len({block for context in running for block in context.table.blocks}),
        running_tokens=sum(context.table.kept_len for context in running),
        kept_tokens=memory.table_stats.tokens,
        leaked_references=pool.reference_count
        - memory.table_stats.blocks
        - memory.kv_transfer.held.total(),
        memory_shortages_total=counters.memory_shortages,
        step_times=counters.step_times.snapshot(),
        token_times=counters.token_times.snapshot(),
        generated_tokens_total=counters.generated_tokens,
        reused_tokens_total=counters.reused_tokens,
        restored_tokens_total=counters.restored_tokens,
        recomputed_tokens_total=counters.recomputed_tokens,
        new_tokens_total=counters.new_tokens,
        prefix_queries_total=counters.prefix_queries,
        prefix_hits_total=counters.prefix_hits,
        preemptions_total=counters.preemptions,
        swapped_preemptions_total=counters.swapped_preemptions,
        pauses_total=counters.pauses,
        accepted_drafts_total=counters.accepted_drafts,
        rejected_drafts_total=counters.rejected_drafts,
        placement_policy=placement_policy,
        degradations_total=dict(counters.degradations),
        evictions_total=dict(counters.evictions),
        reclaim_times={cause: times.snapshot() for cause, times in counters.reclaim_times.items()},
        tiers={tier.name: _tier_stats(tier) for tier in memory.kv_transfer.tiers},
    )


def _tier_stats(tier: Tier) -> TierStats:
    flow = tier.flow
    return TierStats(
        blocks=len(tier.index),
        capacity_blocks=tier.index.capacity,
        bytes=len(tier.index) * tier.slot_bytes,
        stored_bytes_total=flow.stored_bytes,
        fetched_bytes_total=flow.fetched_bytes,
        store_times=flow.store_times.snapshot(),
        fetch_times=flow.fetch_times.snapshot(),
        refused_blocks_total=flow.refused,
    )


def pool_map(
    contexts: Mapping[SessionId, Context], pool: BlockPool, moving: Collection[BlockId]
) -> PoolMap:
    """Return the state of all blocks. O(pool): some milliseconds for 100,000 blocks."""
    counted, marked = pool.snapshot()
    references, hashed = np.frombuffer(counted, np.intc), np.frombuffer(marked, np.uint8)
    states = np.full(pool.total, _LETTERS["free"], np.uint8)
    states[hashed == 1] = _LETTERS["cached"]
    states[references == 1] = _LETTERS["active"]
    states[references > 1] = _LETTERS["shared"]
    states[np.array(list(moving), np.intp)] = _LETTERS["moving"]
    holders = [context for context in contexts.values() if context.table.block_count]
    blocks = [block for context in holders for block in context.table.blocks]
    owners = np.full(pool.total, -1, "<i4")
    owners[np.array(blocks, np.intp)] = np.repeat(
        np.arange(len(holders)), [context.table.block_count for context in holders]
    )
    return PoolMap(
        states=states.tobytes(),
        owners=owners.tobytes(),
        sessions=[context.session for context in holders],
    )


def context_views(
    sessions: Sequence[SessionId], memory: Executor, kv_bytes_per_block: int
) -> ContextViews:
    """Views of several sessions, without their page tables."""
    return ContextViews(
        contexts=[
            context_view(session, memory, kv_bytes_per_block, paged=False) for session in sessions
        ]
    )


def context_view(
    session: SessionId, memory: Executor, kv_bytes_per_block: int, *, paged: bool = True
) -> ContextView:
    """View of one session. For a running turn only ids with KV are shown."""
    context, pool = memory.contexts.get(session), memory.pool
    stored = memory.kv_transfer.blocks_in(context) if context else {}
    entries = context.table.entries if context else ()
    blocks = context.table.block_count if context else 0
    return ContextView(
        session=session,
        known=context is not None,
        running=context is not None and context.activity is not Activity.IDLE,
        tokens=context.committed if context else 0,
        kept_len=context.table.kept_len if context else 0,
        blocks=blocks,
        shared_blocks=sum(pool.references(entry.block) > 1 for entry in entries),
        kv_bytes=blocks * kv_bytes_per_block,
        page_table=[_page(entry, pool) for entry in entries] if paged else [],
        host_blocks=stored.get("host", 0),
        disk_blocks=stored.get("disk", 0),
    )


def page_keys(salt: bytes, ids: Sequence[int], memory: Executor) -> PageKeys:
    """Keys of the full pages of a context without edits, which need not be open."""
    partition = memory.no_pages(salt)
    return PageKeys(keys=partition.keys(ids, partition.complete_count(len(ids))))


def stored_blocks(chains: Sequence[Sequence[bytes]], memory: Executor) -> StoredBlocks:
    """Blocks in tiers by context, from the keys of its pages."""
    return StoredBlocks(blocks=[memory.kv_transfer.stored_in(keys) for keys in chains])


def _page(entry: PageEntry, pool: BlockPool) -> PageView:
    return PageView(
        block=entry.block,
        first=entry.first,
        last=entry.last,
        base=entry.base,
        references=pool.references(entry.block),
        hashed=pool.is_hashed(entry.block),
    )


def residency(
    sessions: Sequence[SessionId], memory: Executor, kv_bytes_per_block: int
) -> Residency:
    """KV bytes by session; over all sessions they sum to the bytes of their active blocks."""
    pool, left, looked_at = memory.pool, _MOST_BLOCKS, 0
    kv_bytes: dict[SessionId, float] = {}
    for session in sessions:
        if left <= 0:
            break
        looked_at += 1
        context = memory.contexts.get(session)
        blocks = context.table.blocks if context is not None else ()
        if blocks:
            left -= len(blocks)
            share = sum(1 / pool.references(block) for block in blocks)
            kv_bytes[session] = share * kv_bytes_per_block
    return Residency(kv_bytes=kv_bytes, looked_at=looked_at)
