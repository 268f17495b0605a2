"""Securely deletes KV on the device and in the tiers. Loop thread only."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from engine.ids import BlockId, SessionId
from engine.kv.context import Context
from engine.kv.offload import KvTransfer, StaleCopies
from engine.kv.partition import Partition
from engine.kv.prefixes import Prefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Places where KV of a session's ids may lie.

    `pages`: every number and chain key under which it was ever hashed. `blocks`: the session's
    blocks, hashed or not.
    """

    context: Context
    pages: set[tuple[int, bytes]]
    blocks: frozenset[BlockId]


class SecureDelete:
    """Owns `pending`, keys in an unfinished transfer, and `shared`, blocks that a fork holds."""

    def __init__(
        self,
        contexts: Mapping[SessionId, Context],
        *,
        prefixes: Prefixes,
        stale_copies: StaleCopies,
        kv_transfer: KvTransfer,
        zero_block: Callable[[BlockId], None],
    ) -> None:
        self.pending: set[bytes] = set()
        self.shared: set[BlockId] = set()
        self._contexts = contexts
        self._pool, self._cache = prefixes.pool, prefixes.cache
        self._stale_copies = stale_copies
        self._kv_transfer = kv_transfer
        self._zero_block = zero_block

    def traces(self, session: SessionId) -> Traces | None:
        """Traces of a session that is about to be closed; None: the session is unknown."""
        context = self._contexts.get(session)
        if context is None:
            return None
        blocks = context.table.blocks
        keys = enumerate(map(self._cache.key_of, blocks))  # a fork's tail may be a parent's
        held = {(page, key) for page, key in keys if key is not None}
        return Traces(
            context=context,
            pages=held.union(_pages(context)),
            blocks=frozenset(blocks),
        )

    def wipe(self, traces: Traces) -> None:
        """Overwrite KV of a closed session that no other of its user holds; unhash it."""
        closed = traces.context
        keys = self._stale_copies.unwanted(closed.salt, traces.pages, closed=closed)
        self._kv_transfer.erase(keys)
        self.pending.update(keys)
        for block in traces.blocks:
            if not self._pool.references(block) and not self._pool.is_hashed(block):
                self._zero_block(block)
        self.resume()

    def resume(self) -> None:
        """Overwrite blocks on the device that transfers or forks have released since."""
        if self.pending:
            in_flight = self._kv_transfer.keys_in_flight
            for key in self.pending - in_flight:
                self._wipe(key)
            self.pending &= in_flight
        pool = self._pool
        for block in [block for block in self.shared if not pool.references(block)]:
            self.shared.remove(block)
            if not pool.is_hashed(block):  # otherwise a fork has overwritten the rest
                self._zero_block(block)

    def _wipe(self, key: bytes) -> None:
        block = self._cache.block_of(key)
        if block is None:
            return
        self._cache.forget(block)
        if self._pool.references(block):  # held by a fork that ends inside the block
            self._pool.unmark_hashed(block)
            self.shared.add(block)
        else:
            self._pool.discard(block)
            self._zero_block(block)


def _pages(context: Context) -> Iterator[tuple[int, bytes]]:
    """Numbers and chain keys of all pages ever computed for the context."""
    yield from enumerate(_keys(context.partition, context.stage_ids))
    yield from enumerate(context.final_keys())
    for stage in context.history.stages() or ():
        yield from enumerate(_keys(stage.partition, stage.ids))


def _keys(partition: Partition, ids: list[int]) -> list[bytes]:
    return partition.keys(ids, partition.complete_count(len(ids)))
