"""Finds pages of a context that already have KV in a block, on the device or in a tier.

Loop thread only.
"""

from collections import Counter
from collections.abc import Callable

from engine.ids import BlockId
from engine.kv.block_pool import BlockPool
from engine.kv.context import Context
from engine.kv.history import Stage
from engine.kv.prefix_cache import PrefixCache
from engine.kv.tiers.tiers import Tiers


class Prefixes:
    """Owns the prefix cache: hashes blocks into it, finds them, removes those that are taken.

    `on_hashed` and `on_taken` are called with a block that was hashed, or is about to be
    overwritten. Without `caching` nothing is hashed, so nothing is found.
    """

    def __init__(self, num_blocks: int, *, caching: bool, tiers: Tiers) -> None:
        self.cache = PrefixCache()
        self.pool = BlockPool(num_blocks, self._forget)
        self.caching = caching
        self.on_hashed: Callable[[BlockId, Context], None] = lambda _block, _context: None
        self.on_taken: Callable[[BlockId], None] = lambda _block: None
        self._tiers = tiers

    def hits(self, context: Context, limit: int) -> list[BlockId]:
        """Blocks after the complete pages of the table; of sealed pages all or none.

        Only pages that are complete within the first `limit` ids count.
        """
        keys, full, stop = self._span(context, limit)
        if full >= stop:
            return []
        hits = self.cache.longest(keys, full, stop)
        return hits if full + len(hits) >= context.partition.sealed_count else []

    def hit_count(self, context: Context, limit: int) -> int:
        """Number of hits."""
        return len(self.hits(context, limit))

    def unheld_hits(self, context: Context, limit: int) -> int:
        """Number of hits on blocks that no context holds, which count as available until then."""
        return sum(not self.pool.references(block) for block in self.hits(context, limit))

    def reach(self, context: Context, limit: int) -> int:
        """Number of hits if all KV in the tiers were restored."""
        if context.stages or not self._tiers:
            return len(self.hits(context, limit))
        keys, full, stop = self._span(context, limit)
        at = full
        while at < stop and (
            self.cache.block_of(keys[at]) is not None or self._tiers.holding(keys[at])
        ):
            at += 1
        return at - full if at >= context.partition.sealed_count else 0

    def has_sealed(self, stage: Stage) -> bool:
        """Whether the device has all pages of a stage from before its last edit."""
        partition, sealed = stage.partition, stage.partition.sealed_count
        if sealed > partition.complete_count(len(stage.ids)):
            return False
        return len(self.cache.longest(partition.keys(stage.ids, sealed), 0, sealed)) == sealed

    def hash_last(self, context: Context, count: int) -> None:
        """Hash the blocks that the last `count` valid slots have made full."""
        if not self.caching:
            return
        partition, end = context.partition, context.table.kept_len
        first, full = partition.complete_count(end - count), partition.complete_count(end)
        for index in range(first, full):
            self._hash(context, context.table.block(index), context.keys(full)[index])

    def hash_sealed(self, context: Context) -> None:
        """Hash the pages that an edit has sealed. They never grow, so the last counts as full."""
        table = context.table
        count = table.sealed_count if self.caching else 0
        own = Counter(table.blocks)
        for index in range(count):
            block = table.block(index)
            if self.pool.references(block) == own[block]:
                self._hash(context, block, context.keys(count)[index])

    def adopt(self, block: BlockId, key: bytes) -> None:
        """Hash a block that the caller references, and that was filled with a key's KV."""
        if self.cache.add(key, block):
            self.pool.mark_hashed(block)

    def distrust(self, context: Context) -> None:
        """Remove a context's pages from the cache and the tiers."""
        for block in context.table.blocks:
            key = self.unhash(block)
            if key is not None:
                self._tiers.erase([key])

    def unhash(self, block: BlockId) -> bytes | None:
        """Remove a referenced block from the cache; return the key that it had."""
        key = self.cache.key_of(block)
        if key is not None:
            self.cache.forget(block)
            self.pool.unmark_hashed(block)
            self.on_taken(block)
        return key

    def _span(self, context: Context, limit: int) -> tuple[list[bytes], int, int]:
        """Keys, the first page that the table lacks or has in part, and the first past `limit`."""
        if not self.caching:
            return [], 0, 0
        partition = context.partition
        full = partition.complete_count(context.table.kept_len)
        stop = partition.complete_count(len(context.stage_ids) if context.stages else limit)
        return (context.keys(stop) if full < stop else []), full, stop

    def _hash(self, context: Context, block: BlockId, key: bytes) -> None:
        if not self.pool.is_hashed(block) and self.cache.add(key, block):
            self.pool.mark_hashed(block)
            self.on_hashed(block, context)

    def _forget(self, block: BlockId) -> None:
        self.cache.forget(block)
        self.on_taken(block)
