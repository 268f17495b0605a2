"""Offload: writes KV to the tiers, in idle time all of it, under pressure what is evicted.

Loop thread only. A block that is being written is referenced by its transfer, so it can't be taken;
it becomes available when the transfer ends, with a copy in a tier or, if that failed, without one.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from engine.context import Context
from engine.ids import BlockId
from engine.memory.block_pool import BlockPool
from engine.memory.prefix_cache import PrefixCache
from engine.tiers.disk import RUN
from engine.tiers.mover import Move
from engine.tiers.store import Label
from engine.tiers.tiers import Pair, Tier, Tiers


@dataclass(frozen=True, slots=True)
class _Due:
    """Owner of a block's KV, and whether it may be stored on disk."""

    owner: bytes
    to_disk: bool


class Swap:
    """Owns the queue of idle-time writes, and the references of blocks being written."""

    def __init__(self, *, pool: BlockPool, cache: PrefixCache, tiers: Tiers) -> None:
        self._pool = pool
        self._cache = cache
        self._tiers = tiers
        self._due: dict[BlockId, _Due] = {}  # hashed blocks that a tier may lack
        self._to_demote: dict[bytes, None] = {}
        self._held: dict[Move, list[BlockId]] = {}

    @property
    def held(self) -> Counter[BlockId]:
        """References of transfers."""
        return Counter(block for blocks in self._held.values() for block in blocks)

    @property
    def keys(self) -> set[bytes]:
        """Keys of blocks being written."""
        return {key for move in self._held for key in move.keys}

    @property
    def moving_blocks(self) -> int:
        """Blocks that become available when their transfers end."""
        return sum(self._pool.references(block) == count for block, count in self.held.items())

    @property
    def has_work(self) -> bool:
        """Whether a write is in flight or queued."""
        return bool(self._held or self._due or self._to_demote)

    def note_hashed(self, block: BlockId, context: Context) -> None:
        """A block holds KV that is worth storing."""
        if self._tiers:
            self._due[block] = _Due(context.owner, to_disk=not context.volatile)

    def note_taken(self, block: BlockId) -> None:
        """A block is about to be overwritten, or its contents are invalid."""
        self._due.pop(block, None)

    def swap_out(self, context: Context) -> None:
        """Write a context's full blocks that no tier has to the first tier that takes them."""
        tier = self._first(volatile=context.volatile)
        if tier is None:
            return
        pairs = []
        for block in dict.fromkeys(context.table.blocks):
            key = self._cache.key_of(block)
            if key is not None and not self._tiers.has(key):
                pairs.append((block, Label(key, context.owner)))
        self._store(tier, pairs)
        if len(self._tiers) > 1 and not context.volatile:
            self._to_demote.update((label.key, None) for _, label in pairs)

    def write_through(self) -> None:
        """Begin some of the queued writes, one transfer at a time in each tier."""
        if self._tiers.in_flight:
            return
        due = list(islice(self._due.items(), RUN))
        for block, _ in due:
            del self._due[block]
        for tier in self._tiers:
            pairs = []
            for block, one in due:
                key = self._cache.key_of(block)
                if key is not None and (one.to_disk or tier.name != "disk"):
                    pairs.append((block, Label(key, one.owner)))
            self._store(tier, pairs)
        if not due:
            self._demote()

    def end(self, move: Move) -> None:
        """One of this object's transfers has ended."""
        self._pool.give(self._held.pop(move, []))

    def _demote(self) -> None:
        for _ in range(min(RUN, len(self._to_demote))):
            key = next(iter(self._to_demote))
            del self._to_demote[key]
            move = self._tiers.begin_demotion(key)
            if move is not None:
                self._held[move] = []

    def _store(self, tier: Tier, pairs: Sequence[Pair]) -> None:
        for move in self._tiers.begin_store(tier, pairs):
            blocks = [BlockId(block) for block in move.blocks]
            self._pool.share(blocks)
            self._held[move] = blocks

    def _first(self, *, volatile: bool) -> Tier | None:
        for tier in self._tiers:
            if not volatile or tier.name != "disk":
                return tier
        return None
