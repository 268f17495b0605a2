"""Known strategies on bare blocks, for comparison. Pure.

Requests are processed in order of arrival. The last blocks of a request are evicted first, since
they are useless without the blocks before them. All return the number of hits.
"""

import heapq
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Literal

from engine.simulation.hints import last_reads
from engine.simulation.trace import Request

Reference = Literal["fifo", "dead_block_lru", "belady"]


def hits_of(reference: Reference, requests: Sequence[Request], capacity: int) -> int:
    """Hits of one strategy with `capacity` blocks."""
    strategies = {"fifo": _fifo, "dead_block_lru": _dead_block_lru, "belady": _belady}
    return strategies[reference](requests, capacity)


def _fifo(requests: Sequence[Request], capacity: int) -> int:
    there: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for request in requests:
        hits += sum(block in there for block in request.blocks)
        for block in reversed(request.blocks):
            there.setdefault(block)
        _shrink(there, capacity)
    return hits


def _dead_block_lru(requests: Sequence[Request], capacity: int) -> int:
    """Least recently used, but a block that is never read again is evicted at once: an oracle."""
    last = last_reads(requests)
    there: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for index, request in enumerate(requests):
        hits += sum(block in there for block in request.blocks)
        for block in reversed(request.blocks):
            there.pop(block, None)
            if last[block] > index:
                there[block] = None
        _shrink(there, capacity)
    return hits


def _shrink(there: OrderedDict[int, None], capacity: int) -> None:
    while len(there) > capacity:
        there.popitem(last=False)


def _belady(requests: Sequence[Request], capacity: int) -> int:
    """Evict or bypass the block whose next use is farthest away, which maximizes hits.

    Belady, "A study of replacement algorithms for a virtual-storage computer", 1966, with bypass.
    """
    lookups = [block for request in requests for block in request.blocks]
    uses: defaultdict[int, list[int]] = defaultdict(list)
    for at in reversed(range(len(lookups))):
        uses[lookups[at]].append(at)
    next_use: dict[int, int] = {}
    farthest: list[tuple[int, int]] = []
    hits = 0
    for block in lookups:
        uses[block].pop()
        hits += next_use.pop(block, None) is not None
        if uses[block]:
            next_use[block] = uses[block][-1]
            heapq.heappush(farthest, (-uses[block][-1], block))
        while len(next_use) > capacity:
            negative, other = heapq.heappop(farthest)
            if next_use.get(other) == -negative:
                del next_use[other]
    return hits
