"""When an engine counts as hung: it has answered no ping for too long. Pure; counts looks.

The engine answers pings between its steps, so that one which is not answered has met a step that
never ends, a deadlock, or a stopped process.
"""

LOOKS = 8
"""Looks at an open ping in the time that a step may take."""


class Watchdog:
    """Says what to do at each look; its owner looks every `period_s`, or later.

    `step_timeout_s`: how long a step may take at least. Whoever looks may have stood still itself
    (a suspended machine, a busy gateway): such a gap counts as one look, however long it was.
    """

    def __init__(self, step_timeout_s: float) -> None:
        self.step_timeout_s = step_timeout_s
        self.period_s = step_timeout_s / LOOKS
        self._missed: int | None = None  # looks since the ping that is open; None: none is

    def reset(self) -> None:
        """Another engine: nothing has been asked of it."""
        self._missed = None

    def answered(self) -> None:
        """The engine has answered its ping."""
        self._missed = None

    def look(self) -> bool:
        """Whether the engine is to be pinged now."""
        if self._missed is None:
            self._missed = 0
            return True
        self._missed += 1
        return False

    @property
    def is_hung(self) -> bool:
        """Whether the engine has had its time."""
        return self._missed is not None and self._missed >= LOOKS
