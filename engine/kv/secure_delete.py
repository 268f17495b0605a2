"""Securely deletes KV on the device and in the tiers. Loop thread only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.ids import BlockId, SessionId
from engine.kv.context import Context
from engine.kv.executor import Executor
from engine.kv.partition import Partition


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
    """Owns pending deletes: keys in an unfinished transfer, blocks that a fork shares."""

    def __init__(self, memory: Executor, *, zero_block: Callable[[BlockId], None]) -> None:
        self._memory = memory
        self._zero_block = zero_block
        self._pending: set[bytes] = set()
        self._shared: set[BlockId] = set()

    def traces(self, session: SessionId) -> Traces | None:
        """Traces of a session that is about to be closed; None: the session is unknown."""
        context = self._memory.contexts.get(session)
        if context is None:
            return None
        blocks = context.table.blocks
        keys = enumerate(map(self._memory.cache.key_of, blocks))  # a fork's tail may be a parent's
        held = {(page, key) for page, key in keys if key is not None}
        return Traces(
            context=context,
            pages=held.union(_pages(context)),
            blocks=frozenset(blocks),
        )

    def wipe(self, traces: Traces) -> None:
        """Overwrite KV of a closed session that no other of its user holds; unhash it."""
        memory = self._memory
        closed = traces.context
        keys = memory.stale_copies.unwanted(closed.salt, traces.pages, closed=closed)
        memory.kv_transfer.erase(keys)
        self._pending.update(keys)
        for block in traces.blocks:
            if not memory.pool.references(block) and not memory.pool.is_hashed(block):
                self._zero_block(block)
        self.resume()

    def resume(self) -> None:
        """Overwrite blocks on the device that transfers or forks have released since."""
        if self._pending:
            in_flight = self._memory.kv_transfer.keys_in_flight
            for key in self._pending - in_flight:
                self._wipe(key)
            self._pending &= in_flight
        pool = self._memory.pool
        for block in [block for block in self._shared if not pool.references(block)]:
            self._shared.remove(block)
            if not pool.is_hashed(block):  # otherwise a fork has overwritten the rest
                self._zero_block(block)

    def _wipe(self, key: bytes) -> None:
        memory = self._memory
        block = memory.cache.block_of(key)
        if block is None:
            return
        memory.cache.forget(block)
        if memory.pool.references(block):  # held by a fork that ends inside the block
            memory.pool.unmark_hashed(block)
            self._shared.add(block)
        else:
            memory.pool.discard(block)
            self._zero_block(block)


def _pages(context: Context) -> Iterator[tuple[int, bytes]]:
    """Numbers and chain keys of all pages ever computed for the context."""
    yield from enumerate(_keys(context.partition, context.stage_ids))
    yield from enumerate(context.final_keys())
    for stage in context.history.stages() or ():
        yield from enumerate(_keys(stage.partition, stage.ids))


def _keys(partition: Partition, ids: list[int]) -> list[bytes]:
    return partition.keys(ids, partition.complete_count(len(ids)))
