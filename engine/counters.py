"""Engine counters since start. Written by the loop and the executor."""

from collections import Counter
from dataclasses import dataclass, field

from engine.ipc.queries import ReclaimCause
from engine.system.histogram import RECLAIM_SECONDS, STEP_SECONDS, TOKEN_SECONDS, Histogram


@dataclass(slots=True)
class Counters:
    """Counters that only rise; names and units as in `EngineStats`."""

    memory_shortages: int = 0
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
    pauses: int = 0
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    degradations: Counter[str] = field(default_factory=Counter)
    evictions: Counter[str] = field(default_factory=Counter)
    reclaim_times: dict[ReclaimCause, Histogram] = field(default_factory=dict)

    def reclaimed(self, cause: ReclaimCause, seconds: float) -> None:
        """Count that a session's KV was freed or cut, with the reason and the time it took."""
        if cause not in self.reclaim_times:
            self.reclaim_times[cause] = Histogram(RECLAIM_SECONDS)
        self.reclaim_times[cause].add(seconds)
