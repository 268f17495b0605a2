"""A clock that stands still until a test moves it."""


class FakeClock:
    """Seconds. `tick_s` passes at every look, so that durations are not all zero."""

    def __init__(self, start_s: float = 1000.0, tick_s: float = 0.0) -> None:
        self.now_s = start_s
        self.tick_s = tick_s

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
