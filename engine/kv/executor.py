"""Applies decisions to memory: the only mutator of pool, prefix cache and page tables.

Loop thread only.
"""

from collections.abc import Callable, Sequence

from engine.counters import Counters
from engine.ids import BlockId, SessionId
from engine.ipc.messages import Edit
from engine.kv.context import Context
from engine.kv.edits import Edits
from engine.kv.eviction import Eviction, PlacementConfig
from engine.kv.hashing import ChainHasher, KeyExtras
from engine.kv.history import BadEditsError, History, without
from engine.kv.offload import KvTransfer, StaleCopies
from engine.kv.page_table import MovePages, PageTableStats
from engine.kv.partition import DensePartition, Partition, blocks_for, kept_count
from engine.kv.prefixes import Prefixes
from engine.kv.step import SampleAt, SequenceStep
from engine.kv.tiers.tiers import Tiers


class Executor:
    """Owns the contexts and their blocks."""

    def __init__(  # noqa: PLR0913 -- dependencies of memory, from one place
        self,
        *,
        num_blocks: int,
        block_size: int,
        fingerprint: str,
        caching: bool,
        max_replay_tokens: int,
        copy_block: Callable[[BlockId, BlockId], None],
        placement: PlacementConfig,
        tiers: Tiers,
        counters: Counters,
        clock: Callable[[], float],
        recompute_s: Callable[[], float] = lambda: 1.0,
        move_pages: MovePages | None = None,
    ) -> None:
        self.contexts: dict[SessionId, Context] = {}
        self.table_stats = PageTableStats()
        self.prefixes = Prefixes(num_blocks, caching=caching, tiers=tiers)
        self.cache = self.prefixes.cache
        self.pool = self.prefixes.pool
        self._block_size = block_size
        self._fingerprint = fingerprint
        self._max_replay_tokens = max_replay_tokens
        self._copy_block = copy_block
        self._counters = counters
        self._clock = clock
        self._partition = Partition if move_pages is None else DensePartition
        self.eviction = Eviction(self, config=placement, counters=counters, clock=clock)
        self.kv_transfer = KvTransfer(
            prefixes=self.prefixes,
            tiers=tiers,
            take=self.eviction.take,
            attach=self._attach_hits,
            recompute_s=recompute_s,
        )
        self._edits = Edits(prefixes=self.prefixes, take=self.eviction.take, move_pages=move_pages)
        self.stale_copies = StaleCopies(
            self.contexts, usage=self.eviction.usage, kv_transfer=self.kv_transfer
        )

    # --- contexts ------------------------------------------------------------------------------

    def open(
        self,
        session: SessionId,
        salt: bytes,
        ids: Sequence[int],
        computed: int,
        edits: Sequence[Edit] = (),
    ) -> None:
        """Open a context of `ids` without KV, then `edits`; the first `computed` had KV before.

        Raises:
            BadEditsError: the edits do not fit the ids.
        """
        extras = KeyExtras(fingerprint=self._fingerprint, salt=salt)
        history = History(
            self._partition(self._block_size, ChainHasher(extras)), limit=self._max_replay_tokens
        )
        visible = history.play(ids, edits)
        self.contexts[session] = context = Context(
            session=session,
            salt=salt,
            ids=visible.ids,
            partition=visible.partition,
            history=history,
            table_stats=self.table_stats,
        )
        context.computed_len = max(0, min(computed, len(ids)) - len(ids) + len(context.ids))
        context.last_used_s = self._clock()
        self.eviction.usage.open(session, salt)

    def extend(self, context: Context, ids: Sequence[int], computed: int) -> None:
        """Commit more ids to the session; `computed` of all its ids had KV before."""
        context.append(ids)
        context.commit()
        context.computed_len = min(computed, len(context.ids))

    def edit(self, context: Context, edit: Edit) -> None:
        """Drop spans of a context's ids, and keep the KV of the others.

        If KV has to move and blocks are short, it moves before the next turn starts. A context
        whose edits were forgotten has none until a turn that reported this is committed.

        Raises:
            BadEditsError: the context has fewer ids than the edit was made for.
            BadSpansError: the spans do not fit the ids. Both leave the context unchanged.
        """
        if edit.at != len(context.ids):
            raise BadEditsError(f"{edit} of {len(context.ids)} ids")
        if context.rebuilt_exact:
            after = without(context.ids, edit)
            computed = kept_count(context.computed_len, edit.dropped)
            self.cut(context, edit.dropped[0][0] if edit.dropped else edit.at)
            context.append(after[len(context.ids) :])
            context.committed, context.computed_len = len(context.ids), computed
            return
        self.kv_transfer.abandon(context)
        context.edit(edit)
        self._edits.apply_due(context)

    def leave_room(self, context: Context, more: int) -> None:
        """Forget edits if their partial blocks leave no room in the pool for `more` ids.

        An admitted turn fits the pool in whole blocks, so it can always finish when it runs alone.
        """
        needed = context.page_count(len(context.ids) + more)
        if context.sealed_len and needed > self.pool.total:
            self.forget_edits(context)
            context.rebuilt_exact = True

    def forget_edits(self, context: Context) -> None:
        """Treat a context's visible ids as a context without edits."""
        self.pool.free(context.forget_edits())

    def fork(self, parent: Context, session: SessionId, length: int) -> None:
        """Open a context of the first `length` ids of another, on the same blocks."""
        child = parent.fork(session, length)
        self.pool.share(child.table.blocks)
        self.contexts[session] = child
        child.last_used_s = self._clock()
        self.eviction.usage.fork(parent.session, session)

    def cut(self, context: Context, length: int) -> None:
        """Keep the first `length` ids and their KV."""
        self.kv_transfer.abandon(context)
        self.stale_copies.note(context, length)
        self.pool.free(context.cut(length))

    def release(self, context: Context) -> None:
        """Free all KV of a context; its ids stay."""
        self.kv_transfer.abandon(context)
        self.pool.free(context.release())
        self.kv_transfer.parked.update(context)

    def swap_out(self, context: Context) -> None:
        """Free all KV of a context once the tiers have what they accept of it."""
        self.kv_transfer.swap_out(context)
        self.release(context)

    # --- KV of a turn --------------------------------------------------------------------------

    def outstanding(self, context: Context, limit: int) -> int:
        """Ids to be computed before all have KV, assuming that every prefix hit is used.

        At most `limit` ids count as computed. For KV that is rebuilt by replaying edits the number
        is an upper bound.
        """
        if not self._is_whole(context, limit, self.prefixes.reach):
            return context.history.length + len(context.ids)
        if context.stages:
            return context.outstanding
        partition, kept = context.partition, context.table.kept_len
        hits = self.prefixes.reach(context, limit)
        if hits:
            kept = partition.end(partition.complete_count(kept) + hits)
        return len(context.ids) - min(kept, limit)

    def next_key(self, context: Context, first: int, limit: int) -> bytes | None:
        """Chain key of the page that contains id number `first`, if it can be shared.

        Pages that are not complete within the first `limit` ids can't be shared.
        """
        partition = context.partition
        index = partition.complete_count(first)
        if not self.prefixes.caching or context.stages or index >= partition.complete_count(limit):
            return None
        return context.keys(index + 1)[index]

    def try_admit(self, context: Context, limit: int) -> bool:
        """Reserve blocks for all pending tokens, after taking hits from the prefix cache.

        At most `limit` tokens count as computed: the last prompt token is always recomputed when
        its logits are needed. False when there are not enough blocks; hits are kept.
        """
        before = context.table.kept_len
        if not self._is_whole(context, limit, self.prefixes.hit_count):
            self._rebuild(context, limit)
        self._attach_hits(context, limit)
        if context.next_edit is not None:
            return False
        if not context.stages and context.table.kept_len > limit:
            self.pool.free(context.table.truncate(limit))
        if not self._reserve_all(context):
            return False
        self._counters.prefix_queries += len(context.ids) - before
        self._counters.prefix_hits += max(0, context.table.kept_len - before)
        return True

    def try_reserve_spare(self, context: Context, count: int) -> bool:
        """Like `try_reserve`, for drafts: no session is evicted for them."""
        needed = context.table.blocks_needed(count)
        return self.pool.available_count >= needed and self.try_reserve(context, count)

    def try_reserve(self, context: Context, count: int) -> bool:
        """Ensure that the next `count` tokens have writable slots; all or nothing.

        A due edit is applied first.
        """
        if not self._edits.apply_due(context):
            return False
        table = context.table
        tail = table.open_tail
        # A hashed block is immutable and a shared one has another owner: write to a private copy.
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
            self.pool.free([table.replace_open_tail(private)])
        table.reserve(blocks)
        return True

    def begin(
        self, context: Context, count: int, sample: SampleAt | None, drafts: Sequence[int] = ()
    ) -> SequenceStep:
        """Make the next slots valid for a step that writes `count` ids, then drafts.

        Until `settle` the table holds slots of drafts, which are not ids of the context.
        """
        table = context.table
        first, position = table.kept_len, table.next_pos
        table.append(count + len(drafts))
        return SequenceStep(
            token_ids=[*context.stage_ids[first : first + count], *drafts],
            first_position=position,
            entries=table.entries,
            sample=sample,
        )

    def distrust(self, context: Context) -> None:
        """Free all KV of a context and unhash it: a step that read it failed.

        The fault may lie in any block: a chunk of a prompt is hashed before logits show that they
        are not finite, and a prefill-only turn has no logits.
        """
        self.prefixes.distrust(context)
        self.release(context)

    def settle(self, context: Context, step: SequenceStep, accepted: int) -> None:
        """After a step: keep the first `accepted` drafts, drop the others."""
        drafts = step.drafts
        rejected = len(drafts) - accepted
        context.append(drafts[:accepted])
        if rejected:
            self.pool.free(context.table.truncate(context.table.kept_len - rejected))
        self._counters.accepted_drafts += accepted
        self._counters.rejected_drafts += rejected
        self.note_computed(context, len(step.token_ids) - rejected)

    def note_computed(self, context: Context, count: int) -> None:
        """Record KV in the last `count` valid slots, and hash the blocks that became full.

        All of them hold accepted tokens: prompts, sampled tokens that were fed again, and accepted
        drafts. If the turn is rolled back they are still the KV of a valid prefix.
        """
        context.note_computed()
        self.prefixes.hash_last(context, count)
        self._edits.apply_due(context)

    # --- idle prefill ---------------------------------------------------------------------------

    def begin_idle(self, context: Context, drafts: int) -> SequenceStep:
        """Make the slots of all pending ids valid, for a step that writes them and some drafts.

        The caller has checked for room: drafts fit behind the ids in the last block.
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
        # The step has its own copy of the entries; no other reader may see the drafts.
        self.pool.free(table.truncate(end))
        return step

    def note_idle(self, context: Context, owed: int, drafts: int) -> None:
        """Record that the step of `begin_idle` has run: the `owed` ids and the drafts have KV."""
        context.idle_len = context.table.kept_len
        context.drafted = drafts
        self.prefixes.hash_last(context, owed)

    def drop_idle(self, context: Context, owed: int) -> None:
        """Remove the slots of `owed` ids: the step of `begin_idle` ran out of memory."""
        self.pool.free(context.table.truncate(context.table.kept_len - owed))

    def claim_drafts(self, context: Context) -> None:
        """Keep drafts that match the ids that a turn has added; drop the others."""
        table, drafted = context.table, context.drafted
        first = table.kept_len
        context.drafted = 0
        if drafted and context.ids[first : first + drafted] == context.draft_ids[:drafted]:
            table.append(drafted)
            context.idle_len = table.kept_len
            self.prefixes.hash_last(context, drafted)

    def _attach_hits(self, context: Context, limit: int) -> None:
        hits = self.prefixes.hits(context, limit)
        if hits:
            table, partition = context.table, context.partition
            self.pool.share(hits)  # first: a block that is freed below may be one of them
            full = partition.complete_count(table.kept_len)
            self.pool.free(table.truncate(partition.end(full)))
            table.attach(hits, [partition.page(full + index) for index in range(len(hits))])
            table.seal(partition.closed_count)
        if context.next_edit is not None and self._edits.apply_due(context):
            self._attach_hits(context, limit)

    def _reserve_all(self, context: Context) -> bool:
        if self.try_reserve(context, context.pending):
            return True
        table = context.table
        tail = table.open_tail
        if tail is None or self.pool.is_writable(tail):
            return False
        # A pool that is just large enough has no block for a copy: compute the tail again.
        partition = context.partition
        end = partition.end(partition.complete_count(table.kept_len))
        if end >= partition.sealed_len:
            self.pool.free(table.truncate(end))
        elif self.pool.references(tail) == 1:  # impossible, but losing it is harmless
            self.prefixes.unhash(tail)
        else:
            return False
        return self.try_reserve(context, context.pending)

    # --- edits ---------------------------------------------------------------------------------

    def _is_whole(self, context: Context, limit: int, find: Callable[[Context, int], int]) -> bool:
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

    def _rebuild(self, context: Context, limit: int) -> None:
        """KV from before an edit is lost: replay the edits, or forget them."""
        stages = context.history.stages() if limit >= context.sealed_len else None
        if stages is None or any(
            blocks_for(len(stage.ids), self._block_size) > self.pool.total for stage in stages
        ):
            self.forget_edits(context)
            context.rebuilt_exact = True
            return
        there = [index for index, stage in enumerate(stages) if self.prefixes.has_sealed(stage)]
        context.stages = stages[there[-1] :]
