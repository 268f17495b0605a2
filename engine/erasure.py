"""Overwrites KV that is to be kept nowhere. Loop thread only."""

from collections.abc import Callable, Iterator

from engine.context import Context
from engine.executor import Executor
from engine.ids import BlockId, SessionId


class Erasure:
    """Knows no state: contexts and blocks are the executor's."""

    def __init__(self, memory: Executor, *, zero_block: Callable[[BlockId], None]) -> None:
        self._memory = memory
        self._zero_block = zero_block

    def traces(self, session: SessionId) -> set[BlockId]:
        """Blocks with KV of a session's ids, whether it holds them or has given them back."""
        context = self._memory.contexts.get(session)
        if context is None:
            return set()
        cached = (self._memory.cache.block_of(key) for key in _keys(context))
        return {*context.table.blocks, *(block for block in cached if block is not None)}

    def wipe(self, blocks: set[BlockId]) -> None:
        """Overwrite those of the blocks that no session holds; nothing hits them any more."""
        pool = self._memory.pool
        for block in blocks:
            if pool.references(block):
                continue
            if pool.is_hashed(block):
                self._memory.cache.forget(block)
                pool.discard(block)
            self._zero_block(block)


def _keys(context: Context) -> Iterator[bytes]:
    """Chain keys of all that was ever computed for what the context holds."""
    yield from context.keys(context.partition.complete_count(len(context.stage_ids)))
    yield from context.final_keys()
    for stage in context.history.stages() or ():
        count = stage.partition.complete_count(len(stage.ids))
        yield from stage.partition.keys(stage.ids, count)
