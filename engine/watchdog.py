"""Detects a hung engine: one that has not answered a ping for too long. Pure; counts looks.

The engine answers pings between its steps, so an unanswered ping means a step that never ends, a
deadlock, or a stopped process.
"""

LOOKS = 8
"""Looks at an open ping within the timeout of a step."""


class Watchdog:
    """Decides at each look; its owner looks every `period_s`, or later.

    `step_timeout_s`: minimum time allowed for a step. The owner may have been stopped itself (a
    suspended machine, a busy gateway): such a gap counts as one look, however long it was.
    """

    def __init__(self, step_timeout_s: float) -> None:
        self.step_timeout_s = step_timeout_s
        self.period_s = step_timeout_s / LOOKS
        self._missed: int | None = None  # looks since the open ping; None: no ping is open

    def reset(self) -> None:
        """The engine was replaced: no ping is open."""
        self._missed = None

    def answered(self) -> None:
        """The engine has answered its ping."""
        self._missed = None

    def look(self) -> bool:
        """Count a look; return whether to ping the engine now."""
        if self._missed is None:
            self._missed = 0
            return True
        self._missed += 1
        return False

    @property
    def is_hung(self) -> bool:
        """Whether the engine has exceeded its time."""
        return self._missed is not None and self._missed >= LOOKS
