"""Applies decisions to memory: the only mutator of pool, cache and tables. Loop thread only."""

from collections.abc import Callable, Sequence
from typing import Literal

from engine.counters import Counters
from engine.ids import BlockId, SessionId
from engine.ipc.messages import Edit, Terms
from engine.kv.context import Context
from engine.kv.edits import Edits
from engine.kv.eviction import Eviction, PlacementConfig
from engine.kv.hashing import ChainHasher, KeyExtras
from engine.kv.history import BadEditsError, History, without
from engine.kv.offload import KvTransfer, StaleCopies
from engine.kv.page_table import MovePages, PageTableStats
from engine.kv.partition import DensePartition, Partition, kept_count
from engine.kv.prefixes import Prefixes
from engine.kv.secure_delete import SecureDelete, Traces
from engine.kv.step import SampleAt, SequenceStep
from engine.kv.tiers.tiers import Tiers


class Executor:
    """Owns the contexts and their blocks. Its public attributes are for readers, such as audits."""

    def __init__(  # noqa: PLR0913 -- dependencies of memory, from one place
        self,
        *,
        num_blocks: int,
        block_size: int,
        fingerprint: str,
        caching: bool,
        max_replay_tokens: int,
        copy_block: Callable[[BlockId, BlockId], None],
        zero_block: Callable[[BlockId], None],
        placement: PlacementConfig,
        tiers: Tiers,
        counters: Counters,
        clock: Callable[[], float],
        recompute_s: Callable[[], float] = lambda: 1.0,
        move_pages: MovePages | None = None,
    ) -> None:
        self.contexts: dict[SessionId, Context] = {}
        self.table_stats = PageTableStats()
        self._prefixes = Prefixes(num_blocks, caching=caching, tiers=tiers)
        self.cache, self.pool = self._prefixes.cache, self._prefixes.pool
        self.unheld_hits = self._prefixes.unheld_hits
        self._block_size = block_size
        self._fingerprint = fingerprint
        self._max_replay_tokens = max_replay_tokens
        self._copy_block = copy_block
        self._counters = counters
        self._clock = clock
        self._partition = Partition if move_pages is None else DensePartition
        self._tiers = tiers
        self.kv_transfer = KvTransfer(
            prefixes=self._prefixes,
            tiers=tiers,
            take=self._take,
            attach=self._attach_hits,
            recompute_s=recompute_s,
        )
        self._eviction = Eviction(
            self.contexts,
            pool=self.pool,
            tiers=self.kv_transfer,
            release=self.release,
            swap_out=self.swap_out,
            config=placement,
            counters=counters,
            clock=clock,
        )
        self.usage = self._eviction.usage
        self._parked, self._to_demote = self.kv_transfer.parked, self.kv_transfer.to_demote
        self._edits = Edits(prefixes=self._prefixes, take=self._take, move_pages=move_pages)
        self._stale_copies = StaleCopies(
            self.contexts, usage=self.usage, kv_transfer=self.kv_transfer
        )
        self._secure_delete = SecureDelete(
            self.contexts,
            prefixes=self._prefixes,
            stale_copies=self._stale_copies,
            kv_transfer=self.kv_transfer,
            zero_block=zero_block,
        )
        self._deferred_frees = self.table_stats.deferred_frees
        self._least_available = num_blocks - placement.high_watermark * num_blocks

    # --- between steps -------------------------------------------------------------------------

    def maintain(self) -> None:
        """Do what is due between two steps; return at once when nothing is.

        Finished transfers free their blocks, a full tier's blocks go to the next one, discarded
        objects are freed, tier copies of cut pages and pending secure deletes are erased. Above the
        high watermark idle contexts are evicted.
        """
        deletes = self._secure_delete
        if self._tiers.in_flight:
            self.kv_transfer.poll()
        if self._to_demote:
            self.kv_transfer.make_room()
        if self._deferred_frees.objects:
            self._deferred_frees.empty()
        if self._stale_copies.cut:
            self._stale_copies.forget()
        if deletes.pending or deletes.shared:
            deletes.resume()
        if self.pool.available_count < self._least_available:
            self._eviction.relieve()

    @property
    def has_tiers(self) -> bool:
        """Whether KV can be written to a tier below the device."""
        return len(self._tiers) > 0

    @property
    def transfers_press(self) -> bool:
        """Whether transfers are about to make blocks available, or a waiting turn runnable."""
        return self.kv_transfer.is_pressing

    @property
    def transfer_due(self) -> Literal["now", "when_idle"] | None:
        """Whether a transfer is in flight, or KV is to be written once the engine is idle."""
        if self._tiers.in_flight:
            return "now"
        return "when_idle" if self.kv_transfer.has_work else None

    def await_transfers(self, timeout_s: float) -> None:
        """Sleep until a transfer that a turn waits for has ended, or the time is over."""
        if self.kv_transfer.is_pressing:
            self._tiers.wait(timeout_s)

    def write_through(self) -> None:
        """Begin to write KV that tiers lack, while the engine is idle."""
        self.kv_transfer.write_through()

    def restore(self, context: Context, limit: int) -> bool:
        """Restore KV of a waiting turn from the tiers; whether it is still on its way."""
        return self.kv_transfer.restore(context, limit)

    def prefetch(self, context: Context, limit: int, keep: int) -> bool:
        """Begin to restore KV of a turn that can't run yet, leaving `keep` blocks available."""
        return self.kv_transfer.prefetch(context, limit, keep)

    def close(self, timeout_s: float) -> None:
        """Write pending KV to the tiers, for this long at most, and close them."""
        self._stale_copies.forget()
        self.kv_transfer.close(timeout_s, self._clock)

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
        history = History(self.no_pages(salt), limit=self._max_replay_tokens)
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
        self.usage.open(session, salt)

    def no_pages(self, salt: bytes) -> Partition:
        """A partition under the salt of a user, to number and hash pages with."""
        hasher = ChainHasher(KeyExtras(fingerprint=self._fingerprint, salt=salt))
        return self._partition(self._block_size, hasher)

    def context(self, session: SessionId) -> Context | None:
        """The context of a session; None: it is not open."""
        return self.contexts.get(session)

    def close_context(self, session: SessionId) -> None:
        """Remove a context that holds no block. Its usage is kept until `forget_usage`."""
        self.free_later(self.contexts.pop(session))

    def note_changed(self, session: SessionId) -> None:
        """Record that a session's blocks or ids have changed, or that it was closed."""
        if (context := self.contexts.get(session)) is None:
            self._parked.forget(session)
        else:
            self._parked.update(context)

    def free_later(self, old: object) -> None:
        """Keep an object that refers to long lists until there is time to free it."""
        self._deferred_frees.add(old)

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
            raise BadEditsError(f"{edit} does not fit a context of {len(context.ids)} ids")
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
        self._edits.leave_room(context, more)

    def forget_edits(self, context: Context) -> None:
        """Treat a context's visible ids as a context without edits."""
        self._edits.forget(context)

    def fork(self, parent: Context, session: SessionId, length: int) -> None:
        """Open a context of the first `length` ids of another, on the same blocks."""
        self.contexts[session] = child = parent.fork(session, length)
        self.pool.share(child.table.blocks)
        child.last_used_s = self._clock()
        self.usage.fork(parent.session, session)

    def cut(self, context: Context, length: int) -> None:
        """Keep the first `length` ids and their KV."""
        self.kv_transfer.abandon(context)
        self._stale_copies.note(context, length)
        self.pool.free(context.cut(length))

    def release(self, context: Context) -> None:
        """Free all KV of a context; its ids stay."""
        self.kv_transfer.abandon(context)
        self.pool.free(context.release())
        self._parked.update(context)

    def swap_out(self, context: Context) -> None:
        """Free all KV of a context once the tiers have what they accept of it."""
        self.write_out(context)
        self.release(context)

    def write_out(self, context: Context) -> None:
        """Begin to write KV that no tier has; its blocks may be freed at once."""
        self.kv_transfer.swap_out(context)

    def traces(self, session: SessionId) -> Traces | None:
        """Where KV of a session lies that is about to be closed; None: the session is not open."""
        return self._secure_delete.traces(session)

    def wipe(self, traces: Traces) -> None:
        """Overwrite KV of a closed session that no other of its user holds; unhash it."""
        self._secure_delete.wipe(traces)

    # --- use of a session, seen by the placement policy -------------------------------------------

    def note_turn(self, context: Context, new_tokens: int, terms: Terms | None) -> None:
        """Record a submitted turn of this many new tokens, and its owner's terms; None: none."""
        self._eviction.note_turn(context, new_tokens)
        if terms is not None:
            self.usage.set_limits(context.session, terms)
            self.kv_transfer.set_limits(context.owner, terms)

    def note_turn_end(self, context: Context) -> None:
        """Record that the session's turn has ended."""
        self._eviction.note_idle(context)

    def forget_usage(self, session: SessionId) -> None:
        """Record that the session has ended."""
        self._eviction.forget(session)

    def obtainable(self) -> int:
        """Blocks available now or shortly without preempting a running turn."""
        return self._eviction.obtainable

    # --- KV of a turn --------------------------------------------------------------------------

    def outstanding(self, context: Context, limit: int) -> int:
        """Ids to be computed before all have KV, assuming that every prefix hit is used.

        At most `limit` ids count as computed. An upper bound for KV rebuilt by replaying edits.
        """
        if not self._edits.is_whole(context, limit, self._prefixes.reach):
            return context.history.length + len(context.ids)
        if context.stages:
            return context.outstanding
        partition, kept = context.partition, context.table.kept_len
        hits = self._prefixes.reach(context, limit)
        if hits:
            kept = partition.end(partition.complete_count(kept) + hits)
        return len(context.ids) - min(kept, limit)

    def next_key(self, context: Context, first: int, limit: int) -> bytes | None:
        """Chain key of the page that contains id number `first`, if it can be shared.

        Pages that are not complete within the first `limit` ids can't be shared.
        """
        partition = context.partition
        index = partition.complete_count(first)
        if not self._prefixes.caching or context.stages or index >= partition.complete_count(limit):
            return None
        return context.keys(index + 1)[index]

    def try_admit(self, context: Context, limit: int) -> bool:
        """Reserve blocks for all pending tokens, after taking hits from the prefix cache.

        At most `limit` tokens count as computed: the last prompt token is always recomputed when
        its logits are needed. False when there are not enough blocks; hits are kept.
        """
        before = context.table.kept_len
        if not self._edits.is_whole(context, limit, self._prefixes.hit_count):
            self._edits.rebuild(context, limit)
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
        if context.stages and not self._edits.apply_due(context):
            return False
        table = context.table
        tail = table.open_tail
        # A hashed block is immutable and a shared one has another owner: write to a private copy.
        copied = tail is not None and not self.pool.is_writable(tail)
        needed = table.blocks_needed(count) + copied
        if not needed:
            return True
        blocks = self._eviction.take(needed, context)
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
        self._prefixes.distrust(context)
        self.release(context)

    def settle(self, context: Context, step: SequenceStep, accepted: int) -> None:
        """After a step: keep the first `accepted` drafts, drop the others."""
        rejected = 0
        if step.sample is not None and step.sample.drafts:
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
        if not context.table.ends_open(count):
            self._prefixes.hash_last(context, count)
        if context.stages:
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
        self._prefixes.hash_last(context, owed)

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
            self._prefixes.hash_last(context, drafted)

    def _attach_hits(self, context: Context, limit: int) -> None:
        hits = self._prefixes.hits(context, limit)
        if hits:
            table, partition = context.table, context.partition
            self.pool.share(hits)  # first: a block that is freed below may be one of them
            full = partition.complete_count(table.kept_len)
            self.pool.free(table.truncate(partition.end(full)))
            table.attach(hits, [partition.page(full + index) for index in range(len(hits))])
            table.seal(partition.closed_count)
        if context.next_edit is not None and self._edits.apply_due(context):
            self._attach_hits(context, limit)

    def _take(self, count: int, receiver: Context) -> list[BlockId] | None:
        return self._eviction.take(count, receiver)

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
            self._prefixes.unhash(tail)
        else:
            return False
        return self.try_reserve(context, context.pending)
