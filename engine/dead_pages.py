"""Stale tier copies: pages that were cut from sessions. Loop thread only.

Blocks are reusable as soon as a session is cut; searching the tiers for their copies takes longer,
so it waits for the next step.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from operator import itemgetter

from engine.context import Context
from engine.ids import SessionId
from engine.movement import Movement
from engine.usage import UsageBook

PageKey = tuple[int, bytes]
"""Number of a page and its chain key."""


class DeadPages:
    """Collects the pages that were cut since the last `forget`."""

    def __init__(
        self, contexts: Mapping[SessionId, Context], *, usage: UsageBook, movement: Movement
    ) -> None:
        self._contexts = contexts
        self._usage = usage
        self._movement = movement
        self._cut: list[tuple[bytes, int, int, list[bytes]]] = []  # one slice of the keys each

    def note(self, context: Context, length: int) -> None:
        """A context is about to be cut to its first `length` ids. The list of its keys stays."""
        if not self._movement.tiers or context.stages:
            return
        first, stop = map(context.partition.complete_count, (length, context.computed_len))
        if first < stop:
            self._cut.append((context.salt, first, stop, context.keys(stop)))

    def forget(self) -> None:
        """Drop tier copies of cut pages, unless a session of the same user holds them again.

        See `Movement.erase`.
        """
        cut, self._cut = self._cut, []
        for salt, first, stop, keys in cut:
            self._movement.erase(self.unwanted(salt, enumerate(keys[first:stop], first)))

    def unwanted(
        self, salt: bytes, pages: Iterable[PageKey], *, closed: Context | None = None
    ) -> list[bytes]:
        """Return keys of those pages that no other session of the user holds; `closed` is ignored.

        A key covers all pages before it: a session without a page has none of the later ones, so it
        is not examined again.
        """
        found = map(self._contexts.get, self._usage.sessions_of(salt))
        sharers = [other for other in found if other is not None and other is not closed]
        gone: list[bytes] = []
        for page, group in groupby(sorted(pages), key=itemgetter(0)):
            keys = {key for _, key in group}
            sharers = [other for other in sharers if _has_any(other, page, keys)]
            gone += (key for key in keys if not any(other.has(page, key) for other in sharers))
        return gone


def _has_any(context: Context, page: int, keys: Collection[bytes]) -> bool:
    return any(context.has(page, key) for key in keys)
