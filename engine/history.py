"""What a context with `shifted` edits has held, so that lost KV can be made again. Pure.

KV from before an edit attended to what was dropped. It can't be computed from the ids that are
left: all that the context ever held is computed in order, and each edit made at the same ids again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.messages import Edit
from engine.partition import Partition, kept_spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """All ids of a context as they were before an edit, and the edit."""

    ids: list[int]
    partition: Partition
    edit: Edit


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """The ids that are left of what a context held, and how they split."""

    ids: list[int]
    partition: Partition


class BadEditsError(Exception):
    """Edits that the ids of a context do not reach, or that drop what is not there."""


class History:
    """All ids up to the last edit, in order, and the edits. More than `limit` ids: forgotten.

    `plain` is the partition of ids without edits.
    """

    def __init__(self, plain: Partition, *, limit: int) -> None:
        self.plain = plain
        self._limit = limit
        self._ids: list[int] | None = []
        self._edits: list[Edit] = []

    @property
    def length(self) -> int:
        """Ids that it would take to play it again; 0 when it is forgotten."""
        return len(self._ids or ())

    def add(self, ids: Sequence[int], edit: Edit) -> None:
        """`ids` came after the edit before, then `edit` was made."""
        self._edits.append(edit)
        if self._ids is not None and len(self._ids) + len(ids) <= self._limit:
            self._ids.extend(ids)
        else:
            self._ids = None
            self._edits.clear()

    def play(self, ids: Sequence[int], edits: Sequence[Edit]) -> Visible:
        """Hold these from now on, and say what is left of them.

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
        """Every stage that led to what is visible; None: they are forgotten."""
        if self._ids is None:
            return None
        return [stage for stage, _ in _stages(self.plain, self._ids, self._edits)]

    def emptied(self) -> "History":
        """One without edits."""
        return History(self.plain, limit=self._limit)

    def copy(self) -> "History":
        """One that may go on by itself."""
        twin = History(self.plain, limit=self._limit)
        twin._ids = None if self._ids is None else self._ids.copy()
        twin._edits = self._edits.copy()
        return twin


def without(ids: Sequence[int], edit: Edit) -> list[int]:
    """Return the ids that an edit leaves."""
    return [
        token for start, stop in kept_spans(len(ids), edit.dropped) for token in ids[start:stop]
    ]


def _stages(
    plain: Partition, ids: Sequence[int], edits: Sequence[Edit]
) -> Iterator[tuple[Stage, int]]:
    """Yield what each edit finds, and how many ids came since the one before."""
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
