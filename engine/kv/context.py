"""A session's token ids, the KV behind a prefix of them, and its chain keys. Loop thread only."""

from array import array
from collections.abc import Sequence
from enum import Enum

from engine.errors import Corruption
from engine.ids import BlockArray, BlockId, SessionId
from engine.ipc.messages import Edit
from engine.ipc.queries import RestoredFrom
from engine.kv.hashing import owner_id
from engine.kv.history import History, Stage, without
from engine.kv.page_table import PageTable, PageTableStats
from engine.kv.partition import Partition, kept_count


class Activity(Enum):
    """State of a context's turn. A placement policy never releases KV of running ones."""

    IDLE = "idle"
    WAITING = "waiting"
    RUNNING = "running"


class CutTooLong(Corruption):
    """A context can't be cut to more ids than it has."""

    def __init__(self, session: SessionId, length: int, there: int) -> None:
        super().__init__(f"{session} cannot be cut to {length} of {there} ids")
        self.length = length
        self.there = there


class Context:
    """Token ids, page table and edits of one session.

    `ids` are what the model sees. ids[:committed] belong to the session, the rest belongs to its
    turn and may be rolled back. ids[:table.kept_len] have KV. ids[:computed_len] have been computed
    before: if their KV is lost they are *re*computed, while later ids (an owed end of turn) never
    were.

    ids[computed_len:idle_len] were computed while the session was idle: no turn has reported them
    yet, so they count as new in the next one. KV of draft_ids[:drafted], predicted ids of the next
    turn, lies in the tail's slots behind the last valid one, where readers of the table do not see
    it. Drafts exist only while the session is idle and all its ids have KV.

    KV of `restored_tokens` ids came back from tiers, the slowest of which is `restored_from`, since
    the last turn began. KV of a `volatile` context is never written to disk.

    `stages` are edits that are still due: until they are made, the table holds the first stage's
    KV, and `stage_ids`, `pending` and `keys` refer to that stage.
    """

    def __init__(  # noqa: PLR0913 -- fields of a value, by their names
        self,
        *,
        session: SessionId,
        salt: bytes,
        ids: list[int],
        partition: Partition,
        history: History,
        table_stats: PageTableStats | None = None,
    ) -> None:
        self.session = session
        self.salt = salt
        self.owner = owner_id(salt)  # as stored in the tiers
        self.ids = ids
        self.committed = len(ids)
        self.computed_len = 0
        self.idle_len = 0
        self.draft_ids: list[int] = []
        self.drafted = 0
        self.table = PageTable(partition.block_size, table_stats)
        self.activity = Activity.IDLE
        self.last_used_s = 0.0
        self.stages: list[Stage] = []
        self.history = history
        self.rebuilt_exact = False  # set until a turn that reported it is committed
        self.volatile = False
        self.was_evicted = False  # evicted or preempted since its last turn began
        self.restored_tokens = 0
        self.restored_from: RestoredFrom = "none"
        self._partition = partition

    @property
    def stage_ids(self) -> list[int]:
        """Ids whose KV the table holds, or is about to hold."""
        return self.stages[0].ids if self.stages else self.ids

    @property
    def partition(self) -> Partition:
        """How `stage_ids` split into pages."""
        return self.stages[0].partition if self.stages else self._partition

    @property
    def pending(self) -> int:
        """Ids without KV, up to the next edit if one is due."""
        ids = self.stages[0].ids if self.stages else self.ids
        return len(ids) - self.table.kept_len

    @property
    def outstanding(self) -> int:
        """All ids to be computed before all of `ids` have KV."""
        if not self.stages:
            return len(self.ids) - self.table.kept_len
        lengths = [*(len(stage.ids) for stage in self.stages[1:]), len(self.ids)]
        ahead = 0
        for stage, length in zip(self.stages, lengths, strict=True):
            ahead += length - kept_count(len(stage.ids), stage.edit.dropped)
        return self.pending + ahead

    @property
    def sealed_len(self) -> int:
        """Ids whose KV can't be computed from `ids`, since an edit was made after them."""
        return self._partition.sealed_len

    @property
    def sealed_end(self) -> int:
        """Ids in the pages that hold the sealed ids, once all of these pages are complete."""
        return self._partition.end(self._partition.sealed_count)

    def page_count(self, length: int) -> int:
        """Pages that `length` ids occupy; after edits these may be parts of blocks."""
        return self._partition.page_count(length)

    @property
    def reusable_len(self) -> int:
        """Ids with KV that remains valid once all edits are made."""
        kept = self.table.kept_len
        for stage in self.stages:  # an edit leaves a prefix of a prefix
            kept = kept_count(kept, stage.edit.dropped)
        return kept

    def keys(self, count: int) -> list[bytes]:
        """Chain keys of (at least) the first `count` pages, all of them complete."""
        return self.partition.keys(self.stage_ids, count)

    def final_keys(self) -> list[bytes]:
        """Chain keys of all complete pages of `ids`, once all edits are made."""
        return self._partition.keys(self.ids, self._partition.complete_count(len(self.ids)))

    def fresh_keys(self, count: int) -> list[bytes]:
        """Recompute the same keys from the ids. For audits."""
        return self.partition.fresh_keys(self.stage_ids, count)

    def has(self, page: int, key: bytes) -> bool:
        """Whether that page of the ids has that key."""
        if self.stages or page >= self._partition.complete_count(len(self.ids)):
            return False
        return self.keys(page + 1)[page] == key

    def note_computed(self) -> None:
        """Record how far the ids have been computed."""
        if not self.stages:
            self.computed_len = max(self.computed_len, self.table.kept_len)

    def append(self, ids: Sequence[int]) -> None:
        """Add ids of the turn, or owed ids."""
        self.ids.extend(ids)

    def commit(self) -> None:
        """Commit all ids to the session."""
        self.committed = len(self.ids)
        self.rebuilt_exact = False

    def cut(self, length: int) -> BlockArray:
        """Keep the first `length` ids and their KV.

        A cut into ids from before an edit restores the ids as if no edit had been made, with the KV
        that belongs to them.

        Returns:
            Blocks that are no longer referenced, reserved ones included, in the table's order.

        Raises:
            CutTooLong: the context has fewer ids. It is left unchanged.
        """
        if length > len(self.ids):
            raise CutTooLong(self.session, length, len(self.ids))
        dropped = array("i")
        if length < self._partition.sealed_len:
            dropped = self.forget_edits()
        self._forget_ids(length)
        self.committed = min(self.committed, length)
        self.computed_len = min(self.computed_len, length)
        self.idle_len = min(self.idle_len, length)
        self.drafted = 0
        if self.stages:
            return dropped + self.table.release_reserved()
        return dropped + self.table.truncate(min(length, self.table.kept_len))

    def release(self) -> BlockArray:
        """Keep the ids only; return all blocks, in the table's order."""
        self.idle_len = self.drafted = 0
        self.stages = []
        self.take_restored()
        return self.table.truncate(0)

    def _forget_ids(self, length: int) -> None:
        deferred_frees, ids = self.table.table_stats.deferred_frees, self.ids
        if length == len(ids):
            return
        if 2 * length < len(ids):  # copy the smaller part
            self.ids = ids[:length]
            deferred_frees.add(ids)
        else:
            deferred_frees.add(ids[length:])
            del ids[length:]
        deferred_frees.add(self._partition.forget_after(length))

    def take_restored(self) -> tuple[int, RestoredFrom]:
        """Return how many ids came back from tiers, and from which; resets both."""
        restored = self.restored_tokens, self.restored_from
        self.restored_tokens, self.restored_from = 0, "none"
        return restored

    def fork(self, session: SessionId, length: int) -> "Context":
        """Return a context of the first `length` ids, on the same blocks (the caller shares them).

        Drafts stay with the parent, though the child may share their block: a block with two
        references is never written.
        """
        child = Context(
            session=session,
            salt=self.salt,
            ids=self.ids.copy(),
            partition=self._partition.copy(),
            history=self.history.copy(),
            table_stats=self.table.table_stats,
        )
        child.computed_len = self.computed_len
        child.idle_len = self.idle_len
        child.rebuilt_exact = self.rebuilt_exact
        child.volatile = self.volatile
        if not self.stages:
            child.table = self.table.fork(self.table.kept_len)
        child.cut(length)
        return child

    # --- edits ---------------------------------------------------------------------------------

    def edit(self, edit: Edit) -> None:
        """Drop spans of the ids. `apply_edit` changes the table once all their ids have KV.

        Raises:
            BadSpansError: the spans do not rise, or lie outside. The context is left unchanged.
        """
        after = self._partition.edited(self.ids, edit.dropped)
        if self.table.kept_len or self.stages:
            self.stages.append(Stage(ids=self.ids, partition=self._partition, edit=edit))
        self.history.add(self.ids[self._partition.sealed_len :], edit)
        self.ids = without(self.ids, edit)
        self._partition = after
        self.committed = kept_count(self.committed, edit.dropped)
        self.computed_len = kept_count(self.computed_len, edit.dropped)
        self.idle_len = kept_count(self.idle_len, edit.dropped)
        self.drafted = 0

    @property
    def next_edit(self) -> Edit | None:
        """The edit that is due: everything before it has KV."""
        return self.stages[0].edit if self.stages and not self.pending else None

    def apply_edit(self) -> tuple[list[BlockId], list[BlockId]]:
        """Apply the due edit to the table where no KV moves.

        Returns:
            Blocks that gain a reference, and those that lose one.
        """
        stage = self.stages.pop(0)
        return self.table.rearrange(stage.partition.pieces(len(stage.ids), stage.edit.dropped))

    def compact(self, first: int, blocks: Sequence[BlockId]) -> list[BlockId]:
        """Apply the due edit to the table: `blocks` now hold all pages from `first` on.

        Returns:
            Blocks that are no longer referenced, in the table's order.
        """
        stage = self.stages.pop(0)
        return self.table.compact(first, blocks, kept_count(len(stage.ids), stage.edit.dropped))

    def forget_edits(self) -> BlockArray:
        """Treat the visible ids as a context without edits.

        Only KV of the prefix before the first edit stays valid.

        Returns:
            Blocks that are no longer referenced, in the table's order.
        """
        if not self._partition.is_edited:
            return array("i")
        plain = self.history.plain_copy()
        kept = 0
        if not self.stages:
            fixed = self._partition.fixed_count
            old_keys = self._partition.keys(self.ids, fixed)[:fixed]
            keys = plain.keys(self.ids, plain.complete_count(self._partition.sealed_len))
            for page, (old, new) in enumerate(zip(old_keys, keys, strict=False)):
                if old != new or self._partition.page(page) != plain.page(page):
                    break
                kept = plain.end(page + 1)
        self.stages = []
        self._partition = plain
        self.history = self.history.emptied()
        dropped = self.table.truncate(min(kept, self.table.kept_len))
        self.table.seal(0)
        return dropped
