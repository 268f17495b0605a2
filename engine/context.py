"""A session's token ids, the KV behind a prefix of them, and its chain keys. Loop thread only."""

from collections.abc import Sequence
from enum import Enum

from engine.errors import Corruption
from engine.ids import BlockId, SessionId
from engine.memory.hashing import ChainHasher
from engine.memory.page_table import PageTable


class Activity(Enum):
    """What a context's turn does. KV of running ones is never released by a placement policy."""

    IDLE = "idle"
    WAITING = "waiting"
    RUNNING = "running"


class CutTooLong(Corruption):
    """A context was to be cut to more ids than it has."""

    def __init__(self, session: SessionId, length: int, there: int) -> None:
        super().__init__(f"{session} was to be cut to {length} of {there} ids")
        self.length = length
        self.there = there


class Context:
    """What one session holds.

    ids[:committed] are the session's, the rest belongs to its turn and may be rolled back.
    KV is there for ids[:table.kept_len]. ids[:computed_len] have been computed at some time: if
    their KV is gone they must be computed *again*, while ids after it (an end of turn that is owed)
    never were.

    ids[computed_len:idle_len] were computed while the session was idle: no turn has told them yet,
    so they are new to the next one. KV of draft_ids[:drafted], a guess at what comes after `ids`,
    lies in the tail's slots behind the last valid one: whoever reads the table does not see it.
    Drafts are there only while the session is idle and KV of all its ids is there.
    """

    def __init__(
        self,
        *,
        session: SessionId,
        ids: list[int],
        table: PageTable,
        hasher: ChainHasher,
    ) -> None:
        self.session = session
        self.ids = ids
        self.committed = len(ids)
        self.computed_len = 0
        self.idle_len = 0
        self.draft_ids: list[int] = []
        self.drafted = 0
        self.table = table
        self.activity = Activity.IDLE
        self.last_used_s = 0.0
        self._hasher = hasher
        self._keys: list[bytes] = []

    @property
    def pending(self) -> int:
        """Ids whose KV is not there."""
        return len(self.ids) - self.table.kept_len

    def keys(self, count: int) -> list[bytes]:
        """Chain keys of (at least) the first `count` blocks, all of them full of ids."""
        if len(self._keys) < count:
            self._hasher.extend(self._keys, self.ids, self.table.block_size, count)
        return self._keys

    def fresh_keys(self, count: int) -> list[bytes]:
        """The same keys computed anew from the ids. For audits."""
        keys: list[bytes] = []
        self._hasher.extend(keys, self.ids, self.table.block_size, count)
        return keys

    def note_computed(self) -> None:
        """Remember how far the ids have been computed."""
        self.computed_len = max(self.computed_len, self.table.kept_len)

    def append(self, ids: Sequence[int]) -> None:
        """Add ids of the turn, or ids that are owed."""
        self.ids.extend(ids)

    def commit(self) -> None:
        """Make all ids the session's."""
        self.committed = len(self.ids)

    def cut(self, length: int) -> list[BlockId]:
        """Keep the first `length` ids and the KV behind them.

        Returns:
            Blocks that are referred to no longer, reserved ones included, in the table's order.

        Raises:
            CutTooLong: there are fewer ids. Nothing has been changed then.
        """
        if length > len(self.ids):
            raise CutTooLong(self.session, length, len(self.ids))
        del self.ids[length:]
        del self._keys[length // self.table.block_size :]
        self.committed = min(self.committed, length)
        self.computed_len = min(self.computed_len, length)
        self.idle_len = min(self.idle_len, length)
        self.drafted = 0
        return self.table.truncate(min(length, self.table.kept_len))

    def release(self) -> list[BlockId]:
        """Keep the ids only; returns all blocks, in the table's order."""
        self.idle_len = self.drafted = 0
        return self.table.truncate(0)

    def fork(self, session: SessionId, length: int) -> "Context":
        """A context of the first `length` ids, on the same blocks (the caller shares them).

        Drafts stay the parent's, though the child may share the block that they lie in: nobody
        writes to a block that two refer to.
        """
        child = Context(
            session=session,
            ids=self.ids[:length],
            table=self.table.fork(min(length, self.table.kept_len)),
            hasher=self._hasher,
        )
        child.computed_len = min(self.computed_len, length)
        child.idle_len = min(self.idle_len, length)
        child._keys = self._keys[: length // self.table.block_size]
        return child
