"""Restores KV of queued turns from the tiers, while others run. Loop thread only.

A waiting turn whose prefix lies in a tier gets blocks, and transfers that fill them. When the last
has ended the blocks are hashed like any prefix, and the turn finds them on the device. A damaged
block is dropped from its tier, and computed like one that was never stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.ids import BlockId, SessionId
from engine.ipc.queries import TierName
from engine.kv.context import Context
from engine.kv.prefixes import Prefixes
from engine.kv.tiers.mover import Transfer
from engine.kv.tiers.store import Label
from engine.kv.tiers.tiers import Pair, Tier, Tiers


@dataclass(slots=True, kw_only=True, eq=False)
class _Restore:
    """Pages from number `first` on; `fetched` of them come from tiers, `good` have arrived.

    `blocks` are in the order of the pages, and all referenced until the restore ends. `abandoned`:
    the context has changed, so no turn waits for the restore.
    """

    context: Context
    limit: int
    first: int
    blocks: list[BlockId]
    fetched: dict[bytes, int]
    good: set[int]
    slowest: TierName
    transfers: int = 0
    abandoned: bool = False


class Restores:
    """Owns the restores in flight.

    `take` finds blocks on the device (see `Eviction.take`); `pays` says whether restoring is faster
    than recomputing.
    """

    def __init__(
        self,
        *,
        prefixes: Prefixes,
        tiers: Tiers,
        take: Callable[[int, Context], list[BlockId] | None],
        pays: Callable[[], bool],
    ) -> None:
        self._prefixes = prefixes
        self._pool = prefixes.pool
        self._tiers = tiers
        self._take = take
        self._pays = pays
        self._of: dict[SessionId, _Restore] = {}
        self._by_transfer: dict[Transfer, _Restore] = {}
        self._coming: set[bytes] = set()

    @property
    def held(self) -> list[BlockId]:
        """References of restores: one to each of their blocks."""
        restores = dict.fromkeys(self._by_transfer.values())
        return [block for restore in restores for block in restore.blocks]

    @property
    def keys(self) -> set[bytes]:
        """Keys of blocks being read."""
        return set(self._coming)

    def coming(self, context: Context, limit: int) -> bool:
        """Restore KV of a waiting turn as far as tiers have it.

        False: no restore is needed or in flight. A prefix that several turns wait for is restored
        once. If the device lacks blocks for a restore, the turn does not wait for one: there are
        too few to admit the turn, or just enough to compute it.
        """
        if context.session in self._of:
            return True
        if context.stages or not self._tiers:
            return False
        first, pages = self._pages(context, limit)
        if any(key in self._coming for key, _, _ in pages):
            return True
        count = sum(tier is not None for _, _, tier in pages)
        if not count or not self._pays():
            return False
        return self._begin(context, limit, first, pages, lambda: self._take(count, context))

    def begin_spare(self, context: Context, limit: int, keep: int) -> bool:
        """Begin the restore that `coming` would, using only blocks whose loss costs nothing.

        `keep` more such blocks are left. False: it can't begin, or there is nothing to restore.
        """
        if context.session in self._of or context.stages or not self._tiers:
            return False
        first, pages = self._pages(context, limit)
        count = sum(tier is not None for _, _, tier in pages)
        if not count or not self._pays() or any(key in self._coming for key, _, _ in pages):
            return False
        take = self._pool.try_take
        return self._begin(
            context,
            limit,
            first,
            pages,
            lambda: take(count) if self._are_spare(count + keep) else None,
        )

    def _are_spare(self, count: int) -> bool:
        """Whether the next blocks to be taken are empty or have a copy in a tier."""
        pool, key_of = self._pool, self._prefixes.cache.key_of
        needed = count - pool.free_count
        if needed <= 0:
            return True
        keys = [key_of(block) for block in pool.cached_blocks(needed)]
        return len(keys) == needed and all(key and self._tiers.has(key) for key in keys)

    def abandon(self, context: Context) -> None:
        """Detach a context that changes: restored blocks only enter the prefix cache."""
        restore = self._of.pop(context.session, None)
        if restore is not None:
            restore.abandoned = True

    def end(self, transfer: Transfer, attach: Callable[[Context, int], None]) -> None:
        """Record a finished fetch; after the last one of a restore the context gets its blocks."""
        restore = self._by_transfer.pop(transfer)
        restore.transfers -= 1
        for block, key, good in zip(transfer.blocks, transfer.keys, transfer.good, strict=True):
            self._coming.discard(key)
            if good:
                self._prefixes.adopt(BlockId(block), key)
                restore.good.add(restore.fetched[key])
        if restore.transfers:
            return
        context = restore.context
        if not restore.abandoned:
            del self._of[context.session]
            attach(context, restore.limit)
            self._count(restore)
        self._pool.free(restore.blocks)

    def _pages(
        self, context: Context, limit: int
    ) -> tuple[int, list[tuple[bytes, BlockId | None, Tier | None]]]:
        """The first page that the table lacks; for each page from there its block, or its tier."""
        partition, cache = context.partition, self._prefixes.cache
        first = partition.complete_count(context.table.kept_len)
        reach = self._prefixes.reach(context, limit)
        pages: list[tuple[bytes, BlockId | None, Tier | None]] = []
        for key in context.keys(first + reach)[first : first + reach]:
            block = cache.block_of(key)
            pages.append((key, block, self._tiers.holding(key) if block is None else None))
        return first, pages

    def _begin(
        self,
        context: Context,
        limit: int,
        first: int,
        pages: Sequence[tuple[bytes, BlockId | None, Tier | None]],
        take: Callable[[], list[BlockId] | None],
    ) -> bool:
        pool = self._pool
        there = [block for _, block, _ in pages if block is not None]
        pool.share(there)  # first: cached ones could be taken otherwise
        taken = take()
        # Blocks that evicted contexts wrote to a tier may have replaced the wanted ones.
        if taken is None or not all(tier is None or key in tier.index for key, _, tier in pages):
            pool.free(there + (taken or []))
            return False
        blocks: list[BlockId] = []
        fetches: dict[str, list[Pair]] = {}
        fetched: dict[bytes, int] = {}
        for page, (key, found, tier) in enumerate(pages, first):
            if tier is None:
                blocks.extend([] if found is None else [found])
                continue
            blocks.append(taken.pop())
            fetched[key] = page
            label = Label(key, context.owner)
            fetches.setdefault(tier.name, []).append((blocks[-1], label))
        restore = _Restore(
            context=context,
            limit=limit,
            first=first,
            blocks=blocks,
            fetched=fetched,
            good=set(),
            slowest="disk" if "disk" in fetches else "host",
        )
        self._start(restore, fetches)
        return True

    def _start(self, restore: _Restore, fetches: dict[str, list[Pair]]) -> None:
        self._of[restore.context.session] = restore
        self._coming.update(restore.fetched)
        for tier in self._tiers:
            for transfer in self._tiers.begin_fetch(tier, fetches.get(tier.name, [])):
                self._by_transfer[transfer] = restore
                restore.transfers += 1

    def _count(self, restore: _Restore) -> None:
        """Count how many of the context's ids came from a tier."""
        context = restore.context
        full = context.partition.complete_count(context.table.kept_len)
        for page in restore.good:
            if page < full:
                start, stop, _ = context.partition.page(page)
                context.restored_tokens += stop - start
        if context.restored_tokens and context.restored_from != "disk":
            context.restored_from = restore.slowest
