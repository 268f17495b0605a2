"""Thread count controller of a step: fewer threads while other processes use the cores. Pure.

The threads of a step pass hundreds of barriers, and each barrier waits for the last thread. When
another process shares a core, all threads wait for the descheduled one, and fewer threads are
faster.
"""

_WINDOW_S = 0.02  # several time slices of the scheduler
_SHORTEST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.6  # between trials of one more thread; a trial costs about a window


class ThreadCountController:
    """Chooses the thread count of the next step from the timings of the last ones.

    Args:
        most: initial and maximum number of threads.
    """

    def __init__(self, most: int) -> None:
        self.threads = most
        self._most = most
        self._pause_s = _SHORTEST_PAUSE_S
        self._since_change_s = 0.0
        self._wall_s = self._cpu_s = self._waiting_s = 0.0  # of the window

    def note(self, *, wall_s: float, cpu_s: float, waiting_s: float) -> None:
        """Record one step.

        Args:
            wall_s: its wall time.
            cpu_s: CPU time of its threads together.
            waiting_s: the part of `cpu_s` spent waiting for late threads.
        """
        self._since_change_s += wall_s
        self._wall_s += wall_s
        self._cpu_s += cpu_s
        self._waiting_s += waiting_s
        if self._wall_s < _WINDOW_S:
            return
        if self.threads > 1 and not self._pays():
            self._change(self.threads - 1)
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        elif self.threads < self._most and self._since_change_s >= self._pause_s:
            self._change(self.threads + 1)  # a trial: its core may be free again
        elif self.threads == self._most:
            self._pause_s = max(self._pause_s / 2, _SHORTEST_PAUSE_S)
        self._wall_s = self._cpu_s = self._waiting_s = 0.0

    def _pays(self) -> bool:
        """Whether the last thread contributes at least half of what it would on a free core.

        Without it the other threads would get the same CPU time, but at most one core each.
        """
        work_s = self._cpu_s - self._waiting_s
        given_s = min(self._cpu_s, (self.threads - 1) * self._wall_s)
        return work_s >= given_s * (1 + 0.5 / self.threads)

    def _change(self, threads: int) -> None:
        self.threads = threads
        self._since_change_s = 0.0
