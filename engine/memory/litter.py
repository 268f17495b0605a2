"""Objects that nobody needs any more, freed when there is time. Loop thread only.

Blocks are given back by looking at arrays; to free the thousands of small objects that told of them
takes longer than that, and nobody waits for it.
"""

_MOST = 64  # lists, for those who free nothing by themselves


class Litter:
    """Owns what was thrown away since it was emptied last."""

    def __init__(self) -> None:
        self._lists: list[object] = []

    def __len__(self) -> int:
        return len(self._lists)

    def add(self, old: object) -> None:
        """Keep something alive that nobody uses any more."""
        if len(self._lists) >= _MOST:
            self.empty()
        self._lists.append(old)

    def empty(self) -> None:
        """Free all of it."""
        self._lists.clear()
