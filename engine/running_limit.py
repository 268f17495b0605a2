"""Adapts how many turns may run at once. Pure."""


class RunningLimit:
    """At most `most`; fewer after memory ran out.

    After a preemption the limit is the number of remaining turns. It rises by one whenever as many
    turns as it allows have ended, like a TCP congestion window, so that hardly more turns are
    preempted than end.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most
        self._ended = 0

    def lower(self, running: int) -> None:
        """A turn was preempted: this many are left."""
        self.now = max(1, min(self.now, running))
        self._ended = 0

    def note_end(self) -> None:
        """A turn has ended: its blocks are free."""
        self._ended += 1
        if self._ended >= self.now:
            self.now = min(self.most, self.now + 1)
            self._ended = 0

    def reset(self) -> None:
        """No turn is left: restore the full limit."""
        self.now, self._ended = self.most, 0
