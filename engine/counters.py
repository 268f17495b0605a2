"""What the engine counts since its start. Written by the loop and the executor."""

from collections import Counter
from dataclasses import dataclass, field

from engine.durations import RECLAIM_BOUNDS_S, STEP_BOUNDS_S, TOKEN_BOUNDS_S, Durations


@dataclass(slots=True)
class Counters:
    """Numbers that only rise; names and units as in `EngineStats`."""

    step_times: Durations = field(default_factory=lambda: Durations(STEP_BOUNDS_S))
    token_times: Durations = field(default_factory=lambda: Durations(TOKEN_BOUNDS_S))
    generated_tokens: int = 0
    reused_tokens: int = 0
    restored_tokens: int = 0
    recomputed_tokens: int = 0
    new_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    swapped_preemptions: int = 0
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    evictions: Counter[str] = field(default_factory=Counter)
    reclaim_times: dict[str, Durations] = field(default_factory=dict)

    def reclaimed(self, cause: str, seconds: float) -> None:
        """Note that a session's KV was given back or cut, why, and how long it took."""
        if cause not in self.reclaim_times:
            self.reclaim_times[cause] = Durations(RECLAIM_BOUNDS_S)
        self.reclaim_times[cause].add(seconds)
