"""Deferred free list: unused objects that are freed when there is time. Loop thread only.

Freeing blocks only changes arrays; freeing the thousands of small objects that described them takes
longer, and can be deferred.
"""

_MOST = 64  # lists, for callers that never empty it


class Litter:
    """Owns the objects added since it was last emptied."""

    def __init__(self) -> None:
        self._lists: list[object] = []

    def __len__(self) -> int:
        return len(self._lists)

    def add(self, old: object) -> None:
        """Keep an unused object alive until the list is emptied."""
        if len(self._lists) >= _MOST:
            self.empty()
        self._lists.append(old)

    def empty(self) -> None:
        """Free all of them."""
        self._lists.clear()
