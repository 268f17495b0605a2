"""Applies edits to the page table once all ids before them have KV. Loop thread only.

Edits whose KV is lost are replayed, or forgotten where that takes too long or too many blocks.
Where K is rotated by its slot only, an edit writes nothing. Where K is rotated by its position, KV
behind the first dropped id moves to lower positions and is rotated once from its original, so that
all pages but the last stay full. It moves into the context's own blocks where no other context
refers to them, otherwise into new blocks.
"""

from collections.abc import Callable, Sequence

from engine.ids import BlockId
from engine.kv.context import Context
from engine.kv.history import Stage
from engine.kv.page_table import MovePages, PageMove
from engine.kv.partition import blocks_for, first_dropped, kept_count, kept_spans
from engine.kv.prefixes import Prefixes


class Edits:
    """Owns no state. `take` is `Eviction.take`; `move_pages` is None where KV holds no position."""

    def __init__(
        self,
        *,
        prefixes: Prefixes,
        take: Callable[[int, Context], list[BlockId] | None],
        move_pages: MovePages | None,
    ) -> None:
        self._prefixes = prefixes
        self._pool = prefixes.pool
        self._take = take
        self._move_pages = move_pages

    def apply_due(self, context: Context) -> bool:
        """Apply the due edits. False when blocks are short: that edit stays due."""
        while context.next_edit is not None:
            if self._move_pages is None:
                self._rearrange(context)
            elif not self._compact(context, context.stages[0], self._move_pages):
                return False
        return True

    def is_whole(self, context: Context, limit: int, find: Callable[[Context, int], int]) -> bool:
        """Whether KV from before the last edit is present, on its way, or can be hit.

        False if a sealed id must be recomputed because its logits are needed.
        """
        sealed = context.sealed_len
        if not sealed:
            return True
        if limit < sealed:
            return False
        if context.stages or context.table.kept_len >= sealed:
            return True
        return find(context, min(limit, context.sealed_end)) > 0

    def rebuild(self, context: Context, limit: int) -> None:
        """KV from before an edit is lost: replay the edits, or forget them."""
        stages = context.history.stages() if limit >= context.sealed_len else None
        if stages is None or any(
            blocks_for(len(stage.ids), stage.partition.block_size) > self._pool.total
            for stage in stages
        ):
            self.forget(context)
            context.rebuilt_exact = True
            return
        there = [index for index, stage in enumerate(stages) if self._prefixes.has_sealed(stage)]
        context.stages = stages[there[-1] :]

    def leave_room(self, context: Context, more: int) -> None:
        """Forget edits if their partial blocks leave no room in the pool for `more` ids."""
        needed = context.page_count(len(context.ids) + more)
        if context.sealed_len and needed > self._pool.total:
            self.forget(context)
            context.rebuilt_exact = True

    def forget(self, context: Context) -> None:
        """Treat a context's visible ids as a context without edits."""
        self._pool.free(context.forget_edits())

    def _rearrange(self, context: Context) -> None:
        gained, lost = context.apply_edit()
        self._pool.share(gained)
        self._pool.free(lost)
        self._prefixes.hash_sealed(context)

    def _compact(self, context: Context, stage: Stage, move_pages: MovePages) -> bool:
        size, pool = stage.partition.block_size, self._pool
        first = first_dropped(len(stage.ids), stage.edit.dropped) // size
        kept_len = kept_count(len(stage.ids), stage.edit.dropped)
        own = context.table.blocks[first : -(-kept_len // size)]
        targets = self._targets(context, own)
        if targets is None:
            return False
        for block in set(own).intersection(targets):
            self._prefixes.unhash(block)  # as if it had been freed and taken again
        move_pages(_moves(context, stage, first, targets))
        pool.free(context.compact(first, targets))
        self._prefixes.hash_last(context, kept_len - first * size)
        return True

    def _targets(self, context: Context, own: Sequence[BlockId]) -> list[BlockId] | None:
        """New blocks in place of those of the context's own that are shared."""
        shared = self._shared(own)
        while shared:
            taken = self._take(len(shared), context)
            if taken is not None:
                return list(map(dict(zip(shared, taken, strict=True)).get, own, own))
            fewer = self._shared(own)
            if len(fewer) == len(shared):
                return None
            shared = fewer  # evicted contexts left pages to this context alone
        return list(own)

    def _shared(self, blocks: Sequence[BlockId]) -> list[BlockId]:
        return [block for block in blocks if self._pool.references(block) > 1]


def _moves(
    context: Context, stage: Stage, first: int, targets: Sequence[BlockId]
) -> list[PageMove]:
    """Contents of the pages from number `first` on.

    Their order matters: ids only move to lower positions, so a page overwrites nothing that a later
    one reads.
    """
    size, blocks = stage.partition.block_size, context.table.blocks
    spans = kept_spans(len(stage.ids), stage.edit.dropped)
    kept = [place for start, stop in spans for place in range(start, stop)]
    moves = []
    for number, target in enumerate(targets, first):
        places = kept[number * size : (number + 1) * size]
        sources = [(blocks[place // size], place % size) for place in places]
        shifts = [number * size + slot - place for slot, place in enumerate(places)]
        moves.append(PageMove(target=target, sources=sources, shifts=shifts))
    return moves
