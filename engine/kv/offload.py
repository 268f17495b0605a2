"""KV transfer between the device and the tiers: out, in, and stale copies. Loop thread only.

`Swap` writes out: in idle time everything, under pressure what is evicted or preempted.
`KvTransfer` combines it with `engine.kv.restore`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, takewhile
from operator import itemgetter

from engine.ids import BlockId, SessionId
from engine.ipc.messages import Terms
from engine.ipc.queries import kv_state
from engine.kv.block_pool import BlockPool
from engine.kv.context import Context
from engine.kv.eviction import TierState, UsageBook
from engine.kv.prefix_cache import PrefixCache
from engine.kv.prefixes import Prefixes
from engine.kv.restore import Restores
from engine.kv.tiers.disk import RUN
from engine.kv.tiers.mover import Transfer
from engine.kv.tiers.store import Label
from engine.kv.tiers.tiers import Pair, Tier, Tiers


class KvTransfer:
    """Owns the transfers in flight. `recompute_s`: seconds to recompute a block.

    `to_demote`: keys that the upper tier has and the lower one still has to get.
    """

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
        self._cache = prefixes.cache
        self._attach = attach
        self._recompute_s = recompute_s
        self._swap = Swap(pool=prefixes.pool, cache=prefixes.cache, tiers=tiers)
        self.to_demote = self._swap.to_demote
        self._restores = Restores(prefixes=prefixes, tiers=tiers, take=take, pays=self._pays)
        prefixes.on_hashed = self._swap.note_hashed
        prefixes.on_taken = self._swap.note_taken

    @property
    def held(self) -> Counter[BlockId]:
        """References of transfers, beside those of page tables."""
        return self._swap.held + Counter(self._restores.held)

    @property
    def keys_in_flight(self) -> set[bytes]:
        """Keys of pages in transfer."""
        return self._swap.keys | self._restores.keys

    @property
    def is_pressing(self) -> bool:
        """Whether transfers are about to make blocks available, or a waiting turn runnable."""
        return bool(self._restores.held or self._swap.transferring_blocks)

    @property
    def has_work(self) -> bool:
        """Whether a transfer is in flight, or KV is to be written in idle time."""
        return self.tiers.in_flight > 0 or self._swap.has_work

    def restore(self, context: Context, limit: int) -> bool:
        """Restore KV of a waiting turn from the tiers. See `Restores.coming`."""
        return self._restores.coming(context, limit)

    def prefetch(self, context: Context, limit: int, keep: int) -> bool:
        """Begin to restore KV of a turn that can't run yet. See `Restores.begin_spare`."""
        return self._restores.begin_spare(context, limit, keep)

    def abandon(self, context: Context) -> None:
        """Detach a context that changes from its restore. See `Restores.abandon`."""
        self._restores.abandon(context)

    def set_limits(self, owner: bytes, terms: Terms) -> None:
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
            block = self._cache.block_of(key)
            if block is not None:
                self._swap.note_taken(block)
        self.tiers.erase(erased)

    def write_through(self) -> None:
        """Begin to write KV that tiers lack, while the engine is idle."""
        self._swap.write_through()

    def make_room(self) -> None:
        """Copy a run of blocks to the lower tier once the upper one is full, busy or not."""
        if not self.tiers.in_flight and next(iter(self.tiers)).index.is_full:
            self._swap.demote()

    def poll(self) -> None:
        """Record finished transfers."""
        for transfer in self.tiers.finished():
            self._end(transfer)

    def tier_state(self) -> TierState:
        """Facts for the placement policy."""
        return TierState(
            swaps=len(self.tiers) > 0,
            restore_s=self.tiers.block_restore_s,
            recompute_s=self._recompute_s(),
            transferring_blocks=self._swap.transferring_blocks,
        )

    def stored_blocks(self, context: Context) -> int:
        """Number of a context's blocks that a tier has a copy of."""
        if not self.tiers:
            return 0
        keys = map(self._cache.key_of, context.table.blocks)
        return sum(key is not None and self.tiers.has(key) for key in keys)

    def blocks_in(self, context: Context) -> dict[str, int]:
        """Number of a context's full pages that each tier has a copy of.

        Without a block on the device only those that could be restored: see `stored_in`.
        """
        count = 0 if context.stages else context.partition.complete_count(len(context.ids))
        keys = context.keys(count)[:count] if self.tiers else []
        return self._copies(keys) if context.table.block_count else self.stored_in(keys)

    def stored_in(self, keys: Iterable[bytes]) -> dict[str, int]:
        """Number of pages in each tier, of the leading ones that are all in tiers."""
        return self._copies(list(takewhile(self.tiers.holding, keys)))

    def is_parked(self, context: Context) -> bool:
        """Whether a context has KV in tiers only. Looks at its first page: see `stored_in`."""
        if context.stages or not context.partition.complete_count(len(context.ids)):
            return False
        stored = bool(self.tiers) and self.tiers.holding(context.keys(1)[0]) is not None
        return kv_state(context.table.block_count, stored) == "parked"

    def _copies(self, keys: Sequence[bytes]) -> dict[str, int]:
        return {tier.name: sum(key in tier.index for key in keys) for tier in self.tiers}

    def close(self, timeout_s: float, clock: Callable[[], float]) -> None:
        """Write pending KV, for this long at most, and close the tiers."""
        self._flush(timeout_s, clock)
        for transfer in self.tiers.close():
            self._end(transfer)

    def _end(self, transfer: Transfer) -> None:
        if transfer.kind == "fetch":
            self._restores.end(transfer, self._attach)
        else:
            self._swap.end(transfer)

    def _flush(self, timeout_s: float, clock: Callable[[], float]) -> None:
        until_s = clock() + timeout_s
        while self.has_work and clock() < until_s:
            self._swap.write_through()
            self.tiers.wait(until_s - clock())
            self.poll()

    def _pays(self) -> bool:
        return self.tiers.block_restore_s < self._recompute_s()


class Parked:
    """Sessions without a block on the device, by the key of their first page.

    A session counts as parked while a tier has that page: later pages are useless without it.
    """

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._key_of: dict[SessionId, bytes] = {}
        self._sessions: Counter[bytes] = Counter()
        self._stored: set[bytes] = set()  # keys that a tier has
        self._count = 0
        for tier in tiers:
            tier.index.on_change = self._changed

    def __len__(self) -> int:
        return self._count

    def __contains__(self, session: SessionId) -> bool:
        return self._key_of.get(session) in self._stored

    def update(self, context: Context) -> None:
        """Record that a session's blocks or ids have changed."""
        if not self._tiers:
            return
        key = _first_key(context)
        if key == self._key_of.get(context.session):
            return
        self.forget(context.session)
        if key is not None:
            self._key_of[context.session] = key
            self._sessions[key] += 1
            self._count += key in self._stored
            self._changed(key)

    def forget(self, session: SessionId) -> None:
        """Remove a session."""
        key = self._key_of.pop(session, None)
        if key is None:
            return
        self._count -= key in self._stored
        self._sessions[key] -= 1
        if not self._sessions[key]:
            del self._sessions[key]
            self._stored.discard(key)

    def _changed(self, key: bytes) -> None:
        """Record that a tier has gained or lost a page."""
        if key not in self._sessions:
            return
        is_stored, was_stored = self._tiers.holding(key) is not None, key in self._stored
        if is_stored and not was_stored:
            self._stored.add(key)
            self._count += self._sessions[key]
        elif was_stored and not is_stored:
            self._stored.remove(key)
            self._count -= self._sessions[key]


def _first_key(context: Context) -> bytes | None:
    if context.table.block_count or context.stages:
        return None
    if not context.partition.complete_count(len(context.ids)):
        return None
    return context.keys(1)[0]


@dataclass(frozen=True, slots=True)
class _DueWrite:
    """Owner of a block's KV, and whether it may be stored on disk."""

    owner: bytes
    to_disk: bool


class Swap:
    """Owns the queue of idle-time writes, and the references of blocks being written."""

    def __init__(self, *, pool: BlockPool, cache: PrefixCache, tiers: Tiers) -> None:
        self._pool = pool
        self._cache = cache
        self._tiers = tiers
        self._due: dict[BlockId, _DueWrite] = {}  # hashed blocks that a tier may lack
        self.to_demote: dict[bytes, None] = {}  # keys that the lower tier still has to get
        self._held: dict[Transfer, list[BlockId]] = {}

    @property
    def held(self) -> Counter[BlockId]:
        """References of transfers."""
        return Counter(block for blocks in self._held.values() for block in blocks)

    @property
    def keys(self) -> set[bytes]:
        """Keys of blocks being written."""
        return {key for transfer in self._held for key in transfer.keys}

    @property
    def transferring_blocks(self) -> int:
        """Blocks that become available when their transfers end."""
        return sum(self._pool.references(block) == count for block, count in self.held.items())

    @property
    def has_work(self) -> bool:
        """Whether a write is in flight or queued."""
        return bool(self._held or self._due or self.to_demote)

    def note_hashed(self, block: BlockId, context: Context) -> None:
        """Queue a hashed block for an idle-time write."""
        if self._tiers:
            self._due[block] = _DueWrite(context.owner, to_disk=not context.volatile)

    def note_taken(self, block: BlockId) -> None:
        """Remove a block that is about to be overwritten or whose contents are invalid."""
        self._due.pop(block, None)

    def swap_out(self, context: Context) -> None:
        """Write a context's full blocks that no tier has to the first tier that takes them."""
        pairs = []
        for block in dict.fromkeys(context.table.blocks):
            key = self._cache.key_of(block)
            if key is not None and not self._tiers.has(key):
                pairs.append((block, Label(key, context.owner)))
        tiers = [tier for tier in self._tiers if tier.name != "disk" or not context.volatile]
        for place, tier in enumerate(tiers, 1):
            self._store(tier, pairs)
            if place < len(tiers):
                written = [label.key for _, label in pairs if tier.index.is_written(label.key)]
                self.to_demote.update(dict.fromkeys(written))
            pairs = [pair for pair in pairs if not tier.index.is_written(pair[1].key)]

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
            self.demote()

    def end(self, transfer: Transfer) -> None:
        """Free the blocks of a finished transfer."""
        self._pool.free(self._held.pop(transfer, []))

    def demote(self) -> None:
        """Begin to copy a run of blocks that only the upper tier has to the lower one."""
        for _ in range(min(RUN, len(self.to_demote))):
            key = next(iter(self.to_demote))
            del self.to_demote[key]
            transfer = self._tiers.begin_demotion(key)
            if transfer is not None:
                self._held[transfer] = []

    def _store(self, tier: Tier, pairs: Sequence[Pair]) -> None:
        """Begin to write; no tier drops for it what the next one still has to get."""
        for transfer in self._tiers.begin_store(tier, pairs, keep=self.to_demote):
            blocks = [BlockId(block) for block in transfer.blocks]
            self._pool.share(blocks)
            self._held[transfer] = blocks


PageKey = tuple[int, bytes]
"""Number of a page and its chain key."""


class StaleCopies:
    """Collects the pages that were cut since the last `forget`: a slice of the keys per cut."""

    def __init__(
        self, contexts: Mapping[SessionId, Context], *, usage: UsageBook, kv_transfer: KvTransfer
    ) -> None:
        self._contexts = contexts
        self._usage = usage
        self._kv_transfer = kv_transfer
        self.cut: list[tuple[bytes, int, int, list[bytes]]] = []

    def note(self, context: Context, length: int) -> None:
        """Record the pages that a context is about to lose: it is cut to its first `length` ids."""
        if not self._kv_transfer.tiers or context.stages:
            return
        first, stop = map(context.partition.complete_count, (length, context.computed_len))
        if first < stop:
            self.cut.append((context.salt, first, stop, context.keys(stop)))

    def forget(self) -> None:
        """Drop tier copies of cut pages, unless a session of the same user holds them again.

        See `KvTransfer.erase`.
        """
        cut, self.cut = self.cut, []
        for salt, first, stop, keys in cut:
            self._kv_transfer.erase(self.unwanted(salt, enumerate(keys[first:stop], first)))

    def unwanted(
        self, salt: bytes, pages: Iterable[PageKey], *, closed: Context | None = None
    ) -> list[bytes]:
        """Return keys of those pages that no other session of the user holds; `closed` is ignored.

        A key covers all pages before it: a session without a page has none of the later ones, so it
        is not examined again.
        """
        found = map(self._contexts.get, self._usage.sessions_of(salt))
        sharers = [other for other in found if other is not None and other is not closed]
        gone: list[bytes] = []
        for page, group in groupby(sorted(pages), key=itemgetter(0)):
            keys = {key for _, key in group}
            sharers = [other for other in sharers if _has_any(other, page, keys)]
            gone += (key for key in keys if not any(other.has(page, key) for other in sharers))
        return gone


def _has_any(context: Context, page: int, keys: Collection[bytes]) -> bool:
    return any(context.has(page, key) for key in keys)
