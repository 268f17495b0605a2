"""What the engine counts since its start. Written by the loop and the executor."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Numbers that only rise; names and units as in `EngineStats`."""

    steps: int = 0
    step_seconds: float = 0.0
    memory_shortages: int = 0
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
    reclaims: Counter[str] = field(default_factory=Counter)
    reclaim_seconds: dict[str, float] = field(default_factory=dict)

    def reclaimed(self, cause: str, seconds: float) -> None:
        """Note that a session's KV was given back or cut, why, and how long it took."""
        self.reclaims[cause] += 1
        self.reclaim_seconds[cause] = self.reclaim_seconds.get(cause, 0.0) + seconds
