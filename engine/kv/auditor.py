"""Checks the memory's invariants; reports, never repairs. Loop thread only. O(pool + contexts)."""

import os
import resource
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from engine.ids import BlockId
from engine.ipc.queries import AuditReport
from engine.kv.block_pool import BlockPool
from engine.kv.context import Activity, Context
from engine.kv.executor import Executor
from engine.kv.offload import KvTransfer
from engine.kv.page_table import PageTableStats
from engine.kv.prefix_cache import PrefixCache


def audit(
    memory: Executor,
    *,
    kv_bytes_per_block: int,
) -> AuditReport:
    """Compare the pool with everything that refers to its blocks."""
    pool, cache, kv_transfer = memory.pool, memory.cache, memory.kv_transfer
    contexts = list(memory.contexts.values())
    references = Counter(block for context in contexts for block in context.table.blocks)
    references += kv_transfer.held
    leaked = [
        block
        for block in map(BlockId, range(pool.total))
        if pool.references(block) > references[block]
    ]
    violations = [
        *_pool_violations(pool, references),
        *_cache_violations(pool, cache),
        *kv_transfer.tiers.violations(),
        *_stats_violations(contexts, memory.table_stats, kv_transfer),
        *(text for context in contexts for text in _context_violations(pool, cache, context)),
    ]
    tier_bytes = {tier.name: len(tier.index) * tier.slot_bytes for tier in kv_transfer.tiers}
    return AuditReport(
        ok=not violations,
        violations=violations,
        total_blocks=pool.total,
        free_blocks=pool.free_count,
        cached_blocks=pool.cached_count,
        active_blocks=pool.active_count,
        leaked_blocks=len(leaked),
        device_bytes=pool.total * kv_bytes_per_block,
        host_bytes=tier_bytes.get("host", 0),
        disk_bytes=tier_bytes.get("disk", 0),
        rss_bytes=_rss_bytes(),
    )


def _pool_violations(pool: BlockPool, references: Counter[BlockId]) -> Iterator[str]:
    lists = Counter(pool.free_blocks())
    lists.update(pool.cached_blocks())
    for block in map(BlockId, range(pool.total)):
        counted, found = pool.references(block), references[block]
        if counted != found:
            yield f"block {block}: {counted} references counted, {found} in tables and transfers"
        if lists[block] != (0 if counted else 1):
            yield f"block {block}: {counted} references, in {lists[block]} lists of the pool"
    if len(pool.cached_blocks()) != pool.cached_count:
        yield f"{pool.cached_count} cached blocks counted, {len(pool.cached_blocks())} listed"
    if pool.reference_count != references.total():
        yield f"{pool.reference_count} references counted, {references.total()} found in all"
    total = pool.free_count + pool.cached_count + sum(1 for count in references.values() if count)
    if total != pool.total:
        yield f"free + cached + active = {total}, the pool has {pool.total}"


def _stats_violations(
    contexts: Sequence[Context], table_stats: PageTableStats, kv_transfer: KvTransfer
) -> Iterator[str]:
    """Compare the running counters with a fresh count."""
    tokens = sum(context.table.kept_len for context in contexts)
    if table_stats.tokens != tokens:
        yield f"{table_stats.tokens} tokens counted in page tables, {tokens} found"
    blocks = sum(context.table.block_count for context in contexts)
    if table_stats.blocks != blocks:
        yield f"{table_stats.blocks} references counted in page tables, {blocks} found"
    holding = sum(context.table.block_count > 0 for context in contexts)
    if table_stats.holding != holding:
        yield f"{table_stats.holding} page tables counted that have blocks, {holding} found"
    for context in contexts:
        parked = kv_transfer.is_parked(context)
        if context.activity is Activity.IDLE and parked != (context.session in kv_transfer.parked):
            yield f"{context.session}: parked is {parked}, but the counter disagrees"


def _cache_violations(pool: BlockPool, cache: PrefixCache) -> Iterator[str]:
    for key, block in cache.items():
        if cache.key_of(block) != key:
            yield f"block {block}: found under a key that is not its own"
        if not pool.is_hashed(block):
            yield f"block {block}: in the prefix cache, but writable in the pool"
    for block in pool.free_blocks():
        if pool.is_hashed(block):
            yield f"block {block}: free, but hashed"
    for block in pool.cached_blocks():
        if not pool.is_hashed(block):
            yield f"block {block}: cached, but not hashed"
    marked = sum(pool.is_hashed(block) for block in map(BlockId, range(pool.total)))
    if marked != len(cache):
        yield f"{marked} blocks are marked as hashed, {len(cache)} are in the prefix cache"


def _context_violations(pool: BlockPool, cache: PrefixCache, context: Context) -> Iterator[str]:
    table, name = context.table, context.session
    ids = len(context.stage_ids)
    if table.kept_len > ids or context.committed > len(context.ids):
        yield f"{name}: {ids} ids, {context.committed} committed, KV of {table.kept_len}"
    if table.sealed_count not in (0, context.partition.sealed_count):
        yield f"{name}: {table.sealed_count} of {context.partition.sealed_count} sealed pages"
    if context.activity is Activity.IDLE and context.committed != len(context.ids):
        yield f"{name}: idle with {len(context.ids) - context.committed} ids not committed"
    if context.activity is Activity.IDLE and table.reserved_count:
        yield f"{name}: idle with {table.reserved_count} blocks reserved"
    if context.drafted and (context.activity is not Activity.IDLE or table.kept_len != ids):
        yield f"{name}: {context.drafted} drafts after KV of {table.kept_len} of {ids} ids"
    if context.drafted > min(table.room, len(context.draft_ids)):
        yield f"{name}: {context.drafted} drafts, room for {table.room}"
    later = table.blocks[table.sealed_count :]
    if len(set(later)) != len(later) or set(later) & set(table.blocks[: table.sealed_count]):
        yield f"{name}: a block occurs twice in one page table without an edit"
    for block in table.blocks[len(table.entries) :]:
        if not pool.is_writable(block):
            yield f"{name}: reserved block {block} is hashed or shared"
    yield from _entry_violations(context)
    yield from _content_violations(cache, context)


def _entry_violations(context: Context) -> Iterator[str]:
    table, name = context.table, context.session
    for entry in table.entries:
        if not 0 <= entry.first <= entry.last < table.block_size:
            yield f"{name}: {entry} has no valid range"
    for left, right in pairwise(table.entries):
        if left.base + left.last >= right.base + right.first:
            yield f"{name}: positions overlap in {left}, {right}"
    if sum(entry.last - entry.first + 1 for entry in table.entries) != table.kept_len:
        yield f"{name}: kept_len {table.kept_len} is not the number of valid slots"
    tail = table.entries[-1] if table.entries else None
    if table.next_pos != (tail.base + tail.last + 1 if tail else 0):
        yield f"{name}: next_pos {table.next_pos} does not follow {tail}"


def _content_violations(cache: PrefixCache, context: Context) -> Iterator[str]:
    count = context.partition.complete_count(context.table.kept_len)
    for index, key in enumerate(context.fresh_keys(count)[:count]):
        block, first, last, _ = context.table.entries[index]
        held = cache.key_of(block)
        # A block that was sealed before it was full may be hashed under a fork's longer ids.
        whole = last - first == context.table.block_size - 1
        if whole and held is not None and held != key:
            yield f"{context.session}: block {block} is hashed under other ids than its own"
        start, stop, slot = context.partition.page(index)
        if (first, last) != (slot, slot + stop - start - 1):
            yield f"{context.session}: block {block} holds {first}..{last}, not its page"


def _rss_bytes() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
