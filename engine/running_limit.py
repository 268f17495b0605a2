"""How many turns may run at once. Pure."""


class RunningLimit:
    """At most `most`; fewer once memory ran out.

    When a turn has to give way, no more may run than are left. One more may as often as so many
    have ended: as TCP opens its window, so that hardly more turns give way than end.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most
        self._ended = 0

    def lower(self, running: int) -> None:
        """A turn had to give way: so many are left."""
        self.now = max(1, min(self.now, running))
        self._ended = 0

    def note_end(self) -> None:
        """A turn has ended: it has given back what it held."""
        self._ended += 1
        if self._ended >= self.now:
            self.now = min(self.most, self.now + 1)
            self._ended = 0

    def reset(self) -> None:
        """There is no turn any more."""
        self.now, self._ended = self.most, 0
