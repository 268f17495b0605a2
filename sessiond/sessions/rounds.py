"""Goes round a table that changes, some of it at a time. Pure."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Rounds(Generic[Item]):
    """Each round has what the table had when the round began, each once, in its order."""

    def __init__(self, table: Callable[[], Iterable[Item]]) -> None:
        self._table = table
        self._left: list[Item] = []

    def next(self, count: int) -> list[Item]:
        """The next of this round, `count` at most; of a new round when it has ended."""
        if not self._left:
            self._left = list(self._table())[::-1]
        some = self._left[-count:][::-1]
        del self._left[-count:]
        return some
