"""KV transfer between the device and the tiers: offload and restore. Loop thread only."""

from collections import Counter
from collections.abc import Callable, Iterable

from engine.context import Context
from engine.eviction import TierFacts
from engine.ids import BlockId
from engine.messages import Terms
from engine.parked import Parked
from engine.prefixes import Prefixes
from engine.restores import Restores
from engine.swap import Swap
from engine.tiers.mover import Move
from engine.tiers.tiers import Tiers


class Movement:
    """Owns the transfers in flight. `recompute_s`: seconds to recompute a block."""

    def __init__(
        self,
        *,
        prefixes: Prefixes,
        tiers: Tiers,
        take: Callable[[int, Context], list[BlockId] | None],
        attach: Callable[[Context, int], None],
        recompute_s: Callable[[], float],
    ) -> None:
        self.tiers = tiers
        self.parked = Parked(tiers)
        self._prefixes = prefixes
        self._attach = attach
        self._recompute_s = recompute_s
        self._swap = Swap(pool=prefixes.pool, cache=prefixes.cache, tiers=tiers)
        self._restores = Restores(prefixes=prefixes, tiers=tiers, take=take, pays=self._pays)
        prefixes.on_hashed = self._swap.note_hashed
        prefixes.on_taken = self._swap.note_taken

    @property
    def held(self) -> Counter[BlockId]:
        """References of transfers, beside those of page tables."""
        return self._swap.held + Counter(self._restores.held)

    @property
    def keys_in_hand(self) -> set[bytes]:
        """Keys of pages in transfer."""
        return self._swap.keys | self._restores.keys

    @property
    def is_pressing(self) -> bool:
        """Whether transfers are about to make blocks available, or a waiting turn runnable."""
        return bool(self._restores.held or self._swap.moving_blocks)

    @property
    def has_work(self) -> bool:
        """Whether a transfer is in flight, or KV is to be written in idle time."""
        return self.tiers.in_flight > 0 or self._swap.has_work

    def brings_back(self, context: Context, limit: int) -> bool:
        """Restore KV of a waiting turn from the tiers. See `Restores.coming`."""
        return self._restores.coming(context, limit)

    def prefetch(self, context: Context, limit: int, keep: int) -> bool:
        """Begin to restore KV of a turn that can't run yet. See `Restores.begin_spare`."""
        return self._restores.begin_spare(context, limit, keep)

    def abandon(self, context: Context) -> None:
        """A context changes: its restores are no longer waited for."""
        self._restores.abandon(context)

    def agree(self, owner: bytes, terms: Terms) -> None:
        """Set the owner's limit in each tier."""
        self.tiers.limit(owner, "host", terms.max_host_bytes)
        self.tiers.limit(owner, "disk", terms.max_disk_bytes)

    def swap_out(self, context: Context) -> None:
        """Begin to write KV of a context that no tier has; its blocks may be freed at once."""
        self._swap.swap_out(context)

    def erase(self, keys: Iterable[bytes]) -> None:
        """Delete pages that no session holds any more, and cancel their copies in progress."""
        erased = list(keys)
        for key in erased:
            block = self._prefixes.cache.block_of(key)
            if block is not None:
                self._swap.note_taken(block)
        self.tiers.erase(erased)

    def write_through(self) -> None:
        """Begin to write KV that tiers lack, while the engine is idle."""
        self._swap.write_through()

    def note_ended(self) -> None:
        """Record finished transfers."""
        for move in self.tiers.finished():
            self._end(move)

    def facts(self) -> TierFacts:
        """Facts for the placement policy."""
        return TierFacts(
            swaps=len(self.tiers) > 0,
            restore_s=self.tiers.block_restore_s,
            recompute_s=self._recompute_s(),
            moving_blocks=self._swap.moving_blocks,
        )

    def stored_blocks(self, context: Context) -> int:
        """Number of a context's blocks that a tier has a copy of."""
        if not self.tiers:
            return 0
        keys = map(self._prefixes.cache.key_of, context.table.blocks)
        return sum(key is not None and self.tiers.has(key) for key in keys)

    def blocks_in(self, context: Context) -> dict[str, int]:
        """Number of a context's full pages that each tier has a copy of."""
        count = 0 if context.stages else context.partition.complete_count(len(context.ids))
        keys = context.keys(count)[:count] if self.tiers else []
        return {tier.name: sum(key in tier.index for key in keys) for tier in self.tiers}

    def is_parked(self, context: Context) -> bool:
        """Whether a context has KV in a tier, and none on the device."""
        if not self.tiers or context.table.block_count:
            return False
        if context.stages or not context.partition.complete_count(len(context.ids)):
            return False
        return self.tiers.holding(context.keys(1)[0]) is not None

    def close(self, timeout_s: float, clock: Callable[[], float]) -> None:
        """Write pending KV, for this long at most, and close the tiers."""
        self._flush(timeout_s, clock)
        for move in self.tiers.close():
            self._end(move)

    def _end(self, move: Move) -> None:
        if move.kind == "fetch":
            self._restores.end(move, self._attach)
        else:
            self._swap.end(move)

    def _flush(self, timeout_s: float, clock: Callable[[], float]) -> None:
        until_s = clock() + timeout_s
        while self.has_work and clock() < until_s:
            self._swap.write_through()
            self.tiers.wait(until_s - clock())
            self.note_ended()

    def _pays(self) -> bool:
        return self.tiers.block_restore_s < self._recompute_s()
