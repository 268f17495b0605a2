"""Tracks which sessions have KV in tiers only, as it changes. Loop thread only.

Counting them needs no scan of all sessions.
"""

from collections import Counter

from engine.context import Context
from engine.ids import SessionId
from engine.tiers.tiers import Tiers


class Parked:
    """Sessions without a block on the device, by the key of their first page.

    A session counts as parked while a tier has that page: later pages are useless without it.
    """

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._key_of: dict[SessionId, bytes] = {}
        self._sessions: Counter[bytes] = Counter()
        self._stored: set[bytes] = set()  # keys that a tier has
        self._count = 0
        for tier in tiers:
            tier.index.on_change = self._changed

    def __len__(self) -> int:
        return self._count

    def __contains__(self, session: SessionId) -> bool:
        return self._key_of.get(session) in self._stored

    def look(self, context: Context) -> None:
        """A session's blocks or ids have changed."""
        if not self._tiers:
            return
        key = _first_key(context)
        if key == self._key_of.get(context.session):
            return
        self.forget(context.session)
        if key is not None:
            self._key_of[context.session] = key
            self._sessions[key] += 1
            self._count += key in self._stored
            self._changed(key)

    def forget(self, session: SessionId) -> None:
        """The session is forgotten."""
        key = self._key_of.pop(session, None)
        if key is None:
            return
        self._count -= key in self._stored
        self._sessions[key] -= 1
        if not self._sessions[key]:
            del self._sessions[key]
            self._stored.discard(key)

    def _changed(self, key: bytes) -> None:
        """A tier has gained or lost a page."""
        if key not in self._sessions:
            return
        is_stored, was_stored = self._tiers.holding(key) is not None, key in self._stored
        if is_stored and not was_stored:
            self._stored.add(key)
            self._count += self._sessions[key]
        elif was_stored and not is_stored:
            self._stored.remove(key)
            self._count -= self._sessions[key]


def _first_key(context: Context) -> bytes | None:
    if context.table.block_count or context.stages:
        return None
    if not context.partition.complete_count(len(context.ids)):
        return None
    return context.keys(1)[0]
