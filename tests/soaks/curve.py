"""What a process holds as turns go by, and whether it rises."""

import asyncio
import ctypes
import gc
import statistics
import sys
from dataclasses import dataclass, field
from itertools import combinations

from engine.system.process_memory import process_memory

_RISING = ("rss_bytes", "heap_bytes", "sqlite_bytes", "python_blocks")
KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """At rest, after so many turns. Bytes, but for what is counted.

    `heap_bytes` are what lives in the C heap's arenas, `sqlite_bytes` what of it SQLite has: pages
    of databases, up to a bound, and statements.
    """

    turns: int
    rss_bytes: int
    heap_bytes: int = 0
    sqlite_bytes: int = 0
    python_blocks: int = 0
    files: int
    tasks: int = 0
    free_blocks: int
    active_blocks: int
    contexts: int = 0
    host_bytes: int = 0


def sample(turns, stats):
    """This process, once what nobody needs has been given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    host, held = stats.tiers.get("host"), process_memory()
    return Sample(
        turns=turns,
        rss_bytes=held.rss_bytes,
        heap_bytes=held.heap_used_bytes,
        sqlite_bytes=_sqlite_bytes(),
        python_blocks=sys.getallocatedblocks(),
        files=held.files,
        tasks=len(asyncio.all_tasks()),
        free_blocks=stats.free_blocks + stats.cached_blocks,
        active_blocks=stats.active_blocks,
        contexts=stats.contexts,
        host_bytes=host.bytes if host else 0,
    )


def _sqlite_bytes():
    import _sqlite3

    used = getattr(ctypes.CDLL(_sqlite3.__file__), "sqlite3_memory_used", None)
    if used is None:  # linked so that nobody else sees it
        return 0
    used.restype = ctypes.c_int64
    return used()


@dataclass
class Curve:
    """Samples in their order; what is judged is what comes after the warm-up."""

    name: str
    warm_up: float = 0.5
    samples: list[Sample] = field(default_factory=list)
    allocations: str = ""  # of traced runs: what was allocated since the warm-up, and is there

    @property
    def settled(self):
        least = self.warm_up * self.samples[-1].turns
        return [one for one in self.samples if one.turns >= least]

    def slope(self, value):
        """Theil and Sen's median slope of what `value` names, per 100 turns."""
        return theil_sen([(one.turns, getattr(one, value)) for one in self.settled]) * 100

    def spread(self, value):
        values = [getattr(one, value) for one in self.settled]
        return max(values) - min(values)

    def __str__(self):
        turns = f"{self.samples[-1].turns} turns, judged from {self.settled[0].turns}"
        slopes = [f"  {name} per 100 turns: {self.slope(name):.1f}" for name in _RISING]
        samples = [f"  {one}" for one in self.samples]
        return "\n".join([f"{self.name}: {turns}", *slopes, *samples, self.allocations])


def theil_sen(points):
    """The median of the slopes between all pairs of points: a few outliers change nothing."""
    slopes = [(y - v) / (x - u) for (u, v), (x, y) in combinations(points, 2)]
    return statistics.median(slopes)
