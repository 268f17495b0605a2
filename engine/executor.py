"""Applies decisions to memory: the only mutator of pool, prefix cache and page tables.

Loop thread only.
"""

from collections.abc import Callable, Sequence

from engine.context import Context
from engine.counters import Counters
from engine.eviction import Eviction, PlacementConfig, TierFacts
from engine.ids import BlockId, SessionId
from engine.memory.block_pool import BlockPool
from engine.memory.hashing import ChainHasher, KeyExtras
from engine.memory.page_table import PageTable
from engine.memory.prefix_cache import PrefixCache
from engine.step import SampleAt, SequenceStep


class Executor:
    """Owns the contexts and the blocks behind them."""

    def __init__(  # noqa: PLR0913 -- what memory depends on, from one place
        self,
        *,
        num_blocks: int,
        block_size: int,
        fingerprint: str,
        caching: bool,
        copy_block: Callable[[BlockId, BlockId], None],
        placement: PlacementConfig,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self.contexts: dict[SessionId, Context] = {}
        self.cache = PrefixCache()
        self.pool = BlockPool(num_blocks, self.cache.forget)
        self._block_size = block_size
        self._fingerprint = fingerprint
        self._caching = caching
        self._copy_block = copy_block
        self._counters = counters
        self._clock = clock
        self.eviction = Eviction(self, config=placement, counters=counters, clock=clock)

    # --- contexts ------------------------------------------------------------------------------

    def open(self, session: SessionId, salt: bytes, ids: list[int], computed: int) -> None:
        """Make a context of `ids`, without KV; the first `computed` had theirs once."""
        extras = KeyExtras(fingerprint=self._fingerprint, salt=salt)
        self.contexts[session] = context = Context(
            session=session,
            ids=list(ids),
            table=PageTable(self._block_size),
            hasher=ChainHasher(extras),
        )
        context.computed_len = min(computed, len(ids))
        context.last_used_s = self._clock()
        self.eviction.usage.open(session, salt)

    def fork(self, parent: Context, session: SessionId, length: int) -> None:
        """Make a context of the first `length` ids of another, on the same blocks."""
        child = parent.fork(session, length)
        self.pool.share(child.table.blocks)
        self.contexts[session] = child
        child.last_used_s = self._clock()
        self.eviction.usage.fork(parent.session, session)

    def cut(self, context: Context, length: int) -> None:
        """Keep the first `length` ids and the KV behind them."""
        self.pool.give(context.cut(length))

    def release(self, context: Context) -> None:
        """Give back all KV of a context; its ids stay."""
        self.pool.give(context.release())

    # --- KV of a turn --------------------------------------------------------------------------

    def cached_len(self, context: Context, limit: int) -> int:
        """Tokens among the first `limit` whose KV is there or could be hit."""
        kept = context.table.kept_len
        hits = len(self._hits(context, limit))
        if hits:
            kept = (kept // self._block_size + hits) * self._block_size
        return min(kept, limit)

    def prefix_keys(self, context: Context, limit: int) -> Sequence[bytes]:
        """Chain keys of the blocks among the first `limit` tokens that could be shared."""
        full = limit // self._block_size
        return context.keys(full)[:full] if self._caching else ()

    def try_admit(self, context: Context, limit: int) -> bool:
        """Reserve blocks for all pending tokens, after taking what the prefix cache has.

        At most `limit` tokens count as computed: the last prompt token is always computed (again)
        when its logits are needed. False when there are not enough blocks; what was hit stays.
        """
        before = context.table.kept_len
        self._attach_hits(context, limit)
        if context.table.kept_len > limit:
            self.pool.give(context.table.truncate(limit))
        if not self._reserve_all(context):
            return False
        self._counters.prefix_queries += len(context.ids) - before
        self._counters.prefix_hits += max(0, context.table.kept_len - before)
        return True

    def try_reserve_spare(self, context: Context, count: int) -> bool:
        """As `try_reserve`, for tokens that may turn out untrue: no session gives way for them."""
        needed = context.table.blocks_needed(count)
        return self.pool.available_count >= needed and self.try_reserve(context, count)

    def try_reserve(self, context: Context, count: int) -> bool:
        """Make sure that the next `count` tokens have slots that may be written; all or nothing."""
        table = context.table
        tail = table.open_tail
        # A hashed block is immutable and a shared one is another's: write to a private copy.
        copied = tail is not None and not self.pool.is_writable(tail)
        needed = table.blocks_needed(count) + copied
        if not needed:
            return True
        blocks = self.eviction.take(needed, context)
        if blocks is None:
            return False
        if tail is not None and copied:
            private = blocks.pop()
            self._copy_block(tail, private)
            self.pool.give([table.replace_open_tail(private)])
        table.reserve(blocks)
        return True

    def begin(
        self, context: Context, count: int, sample: SampleAt | None, drafts: Sequence[int] = ()
    ) -> SequenceStep:
        """Make the next slots valid, for a step that is about to write `count` ids, then drafts.

        Until `settle` the table holds slots of drafts, which are no ids of the context.
        """
        table = context.table
        first, position = table.kept_len, table.next_pos
        table.append(count + len(drafts))
        return SequenceStep(
            token_ids=[*context.ids[first : first + count], *drafts],
            first_position=position,
            entries=table.entries,
            sample=sample,
        )

    def distrust(self, context: Context) -> None:
        """Give back all KV of a context, to be used by nobody: a step that read it failed.

        What broke may lie in any block: a chunk of a prompt is hashed before logits tell that it
        is not finite, and a turn that only prefills has none to tell.
        """
        for block in context.table.blocks:
            if self.pool.is_hashed(block):
                self.cache.forget(block)
                self.pool.unmark_hashed(block)
        self.release(context)

    def settle(self, context: Context, step: SequenceStep, accepted: int) -> None:
        """A step has written its slots: its first `accepted` drafts came true, the rest go."""
        drafts = step.drafts
        rejected = len(drafts) - accepted
        context.append(drafts[:accepted])
        if rejected:
            self.pool.give(context.table.truncate(context.table.kept_len - rejected))
        self._counters.accepted_drafts += accepted
        self._counters.rejected_drafts += rejected
        self.note_computed(context, len(step.token_ids) - rejected)

    def note_computed(self, context: Context, count: int) -> None:
        """The last `count` valid slots hold KV now: hash the blocks that became full.

        All of them hold accepted tokens: prompts, sampled tokens that were fed again, and drafts
        that were sampled then. If the turn is rolled back they are still the KV of a true prefix.
        """
        context.note_computed()
        self._hash_last(context, count)

    # --- KV in advance of a turn ---------------------------------------------------------------

    def begin_idle(self, context: Context, drafts: int) -> SequenceStep:
        """Make the slots of all pending ids valid, for a step that writes them and some drafts.

        The caller has seen to it that there is room: drafts fit behind the ids in the last block.
        """
        table = context.table
        first, position, end = table.kept_len, table.next_pos, len(context.ids)
        table.append(end - first + drafts)
        step = SequenceStep(
            token_ids=context.ids[first:] + context.draft_ids[:drafts],
            first_position=position,
            entries=table.entries,
            sample=None,
        )
        # The step has its own copy of the entries; nobody else is to see the drafts.
        self.pool.give(table.truncate(end))
        return step

    def note_idle(self, context: Context, owed: int, drafts: int) -> None:
        """The step of `begin_idle` has run: KV of the `owed` ids and of the drafts is there."""
        context.idle_len = context.table.kept_len
        context.drafted = drafts
        self._hash_last(context, owed)

    def claim_drafts(self, context: Context) -> None:
        """A turn has added its ids: drafts that they begin with become their KV, others nothing."""
        table, drafted = context.table, context.drafted
        first = table.kept_len
        context.drafted = 0
        if drafted and context.ids[first : first + drafted] == context.draft_ids[:drafted]:
            table.append(drafted)
            context.idle_len = table.kept_len
            self._hash_last(context, drafted)

    def _hash_last(self, context: Context, count: int) -> None:
        if not self._caching:
            return
        end = context.table.kept_len
        full = end // self._block_size
        for index in range((end - count) // self._block_size, full):
            block = context.table.full_block(index)
            if block is not None and self.cache.add(context.keys(full)[index], block):
                self.pool.mark_hashed(block)

    def _hits(self, context: Context, limit: int) -> list[BlockId]:
        full = context.table.kept_len // self._block_size
        stop = limit // self._block_size
        if not self._caching or full >= stop:
            return []
        return self.cache.longest(context.keys(stop), full, stop)

    def _attach_hits(self, context: Context, limit: int) -> None:
        hits = self._hits(context, limit)
        if not hits:
            return
        table = context.table
        self.pool.share(hits)  # first: the block given back below may be one of them
        border = table.kept_len // self._block_size * self._block_size
        self.pool.give(table.truncate(border))
        table.attach(hits)

    def _reserve_all(self, context: Context) -> bool:
        if self.try_reserve(context, context.pending):
            return True
        table = context.table
        tail = table.open_tail
        if tail is None or self.pool.is_writable(tail):
            return False
        # A pool that is just large enough has no block for a copy: compute the tail again.
        self.pool.give(table.truncate(table.kept_len // self._block_size * self._block_size))
        return self.try_reserve(context, context.pending)

    # --- seams to the tiers --------------------------------------------------------------------

    def tier_facts(self) -> TierFacts:
        """What tiers there are: none."""
        return TierFacts()

    def stored_blocks(self, context: Context) -> int:  # noqa: ARG002 -- see Holder
        """Blocks of a context that a tier has a copy of: none."""
        return 0

    def swap_out(self, context: Context) -> None:
        """Without a tier there is nowhere to write to: give back all KV."""
        self.release(context)
