"""History of a context with `shifted` edits, from which lost KV is rebuilt. Pure.

KV from before an edit attended to dropped tokens. It can't be computed from the remaining ids: all
ids that the context ever held are computed in order, and each edit is made at the same ids again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.ipc.messages import Edit
from engine.kv.partition import Partition, kept_spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """All ids of a context before an edit, and the edit."""

    ids: list[int]
    partition: Partition
    edit: Edit


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """Remaining ids of a context, and their partition."""

    ids: list[int]
    partition: Partition


class BadEditsError(Exception):
    """Edits exceed a context's ids, or drop ids that do not exist."""


class History:
    """All ids up to the last edit, in order, and the edits. Discarded beyond `limit` ids.

    `plain` is the partition of ids without edits.
    """

    def __init__(self, plain: Partition, *, limit: int) -> None:
        self.plain = plain
        self._limit = limit
        self._ids: list[int] | None = []
        self._edits: list[Edit] = []

    def plain_copy(self) -> Partition:
        """The partition of ids without edits, to be extended by another owner."""
        return self.plain.copy()

    @property
    def length(self) -> int:
        """Number of ids to replay; 0 when the history was discarded."""
        return len(self._ids or ())

    def add(self, ids: Sequence[int], edit: Edit) -> None:
        """Add an edit, and the `ids` between it and the previous one."""
        self._edits.append(edit)
        if self._ids is not None and len(self._ids) + len(ids) <= self._limit:
            self._ids.extend(ids)
        else:
            self._ids = None
            self._edits.clear()

    def play(self, ids: Sequence[int], edits: Sequence[Edit]) -> Visible:
        """Add ids and edits to an empty history; return the visible ids.

        Raises:
            BadEditsError: an edit does not fit the ids.
        """
        visible, partition, taken = [], self.plain.copy(), 0
        for stage, count in _stages(self.plain, ids, edits):
            self.add(ids[taken : taken + count], stage.edit)
            taken += count
            visible = without(stage.ids, stage.edit)
            partition = stage.partition.edited(stage.ids, stage.edit.dropped)
        return Visible(ids=[*visible, *ids[taken:]], partition=partition)

    def stages(self) -> list[Stage] | None:
        """Every stage that led to the visible ids; None: the history was discarded."""
        if self._ids is None:
            return None
        return [stage for stage, _ in _stages(self.plain, self._ids, self._edits)]

    def emptied(self) -> "History":
        """Return a history without edits."""
        return History(self.plain, limit=self._limit)

    def copy(self) -> "History":
        """Return an independent copy."""
        copied = History(self.plain, limit=self._limit)
        copied._ids = None if self._ids is None else self._ids.copy()
        copied._edits = self._edits.copy()
        return copied


def without(ids: Sequence[int], edit: Edit) -> list[int]:
    """Return the ids that an edit keeps."""
    return [
        token for start, stop in kept_spans(len(ids), edit.dropped) for token in ids[start:stop]
    ]


def _stages(
    plain: Partition, ids: Sequence[int], edits: Sequence[Edit]
) -> Iterator[tuple[Stage, int]]:
    """Yield the ids before each edit, and how many came since the previous edit."""
    visible: list[int] = []
    partition, taken = plain.copy(), 0
    for edit in edits:
        count = edit.at - len(visible)
        reached = 0 <= count <= len(ids) - taken
        if not reached or any(stop > edit.at for _, stop in edit.dropped):
            raise BadEditsError(f"{edit}: {len(visible)} ids visible, {len(ids) - taken} follow")
        visible = [*visible, *ids[taken : taken + count]]
        taken += count
        yield Stage(ids=visible, partition=partition, edit=edit), count
        partition = partition.edited(visible, edit.dropped)
        visible = without(visible, edit)
