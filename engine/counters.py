"""What the engine counts since its start. Written by the loop and the executor."""

from collections import Counter
from dataclasses import dataclass, field

from engine.histogram import RECLAIM_SECONDS, STEP_SECONDS, TOKEN_SECONDS, Histogram
from engine.questions import ReclaimCause


@dataclass(slots=True)
class Counters:
    """Numbers that only rise; names and units as in `EngineStats`."""

    step_times: Histogram = field(default_factory=lambda: Histogram(STEP_SECONDS))
    token_times: Histogram = field(default_factory=lambda: Histogram(TOKEN_SECONDS))
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
    reclaim_times: dict[ReclaimCause, Histogram] = field(default_factory=dict)

    def reclaimed(self, cause: ReclaimCause, seconds: float) -> None:
        """Note that a session's KV was given back or cut, why, and how long it took."""
        if cause not in self.reclaim_times:
            self.reclaim_times[cause] = Histogram(RECLAIM_SECONDS)
        self.reclaim_times[cause].add(seconds)
