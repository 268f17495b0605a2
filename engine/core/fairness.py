"""Orders waiting turns by fairness among owners. Pure.

A virtual token counter for each owner (VTC: Sheng et al., "Fairness in Serving Large Language
Models", OSDI 2024): every token that is computed for an owner raises its counter, by less the
greater its weight; the owner with the lowest counter is served next. An owner whose turns begin to
wait is lifted to the lowest waiting counter, so that past idleness earns no credit.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from math import inf
from typing import Generic, NamedTuple, TypeVar

PROMPT_COST, REPLY_COST = 1.0, 2.0  # of a token, as in the paper: replies are computed one by one
_MOST_IDLE = 1024  # counters of owners without waiting turns, before outdated ones are removed

Turn = TypeVar("Turn")


class WaitingTurn(NamedTuple, Generic[Turn]):
    """A waiting turn. `tokens` of its prompt are new; `begun`: it ran and was preempted."""

    turn: Turn
    owner: bytes
    priority: int
    tokens: int
    weight: float
    begun: bool


class VirtualCounters:
    """Tokens served by owner, in tokens of weight 1."""

    def __init__(self) -> None:
        self._served: dict[bytes, float] = {}
        self._waiting: Counter[bytes] = Counter()
        self._last_left = 0.0

    def __len__(self) -> int:
        return len(self._served)

    def served(self, owner: bytes) -> float:
        """The owner's counter."""
        return self._served.get(owner, self._last_left)

    def join(self, owner: bytes) -> None:
        """Record that a turn of the owner begins to wait."""
        if owner not in self._waiting:
            floor = self._floor
            self._served[owner] = max(self._served.get(owner, floor), floor)
            self._waiting[owner] = 1
            if len(self) > len(self._waiting) + _MOST_IDLE:
                self._forget_up_to(floor)
        else:
            self._waiting[owner] += 1

    def leave(self, owner: bytes) -> None:
        """Record that a waiting turn of the owner has started or ended."""
        self._waiting[owner] -= 1
        if not self._waiting[owner]:
            del self._waiting[owner]
            self._last_left = self._served[owner]

    def charge(self, owner: bytes, cost: float, weight: float) -> None:
        """Charge the owner for computed tokens."""
        self._served[owner] = self.served(owner) + cost / weight

    def clear(self) -> None:
        """Reset the counters: no turn is left."""
        self._served.clear()
        self._waiting.clear()
        self._last_left = 0.0

    @property
    def _floor(self) -> float:
        return min(map(self.served, self._waiting), default=self._last_left)

    def _forget_up_to(self, floor: float) -> None:
        """Remove counters that `join` would lift to this level anyway."""
        gone = [
            owner
            for owner, served in self._served.items()
            if served <= floor and owner not in self._waiting
        ]
        for owner in gone:
            del self._served[owner]


def newcomers(
    weights: Mapping[bytes, float],
    running: Collection[bytes],
    served: Callable[[bytes], float],
    running_slots: int,
) -> set[bytes]:
    """Owners without a running turn whose next turn is admitted first, while others run.

    Their share of the `running_slots`, by the weights of all owners that want some, is at least
    one; or they were served no more than any owner that runs.
    """
    floor, total = min(map(served, running), default=-inf), sum(weights.values())
    return {
        owner
        for owner, weight in weights.items()
        if owner not in running and (running_slots * weight >= total or served(owner) <= floor)
    }


def in_order(
    waiting: Sequence[WaitingTurn[Turn]],
    served: Callable[[bytes], float],
    first: Collection[bytes] = (),
) -> Iterator[Turn]:
    """Return the waiting turns in the order in which they should run.

    `waiting` is in order of priority, then of arrival. Within a priority one turn of each owner in
    `first` comes first. Then come preempted turns, in their order. Then each owner's turns follow
    in arrival order, with owners sorted by their counters, charged with the prompts of all turns
    before.
    """
    for _, group in groupby(waiting, key=lambda candidate: candidate.priority):
        candidates = list(group)
        ahead = _one_of_each(candidates, first)
        for owner in sorted(ahead, key=served):
            yield ahead[owner].turn
        others = [
            candidate for candidate in candidates if ahead.get(candidate.owner) is not candidate
        ]
        yield from (candidate.turn for candidate in others if candidate.begun)
        queues: dict[bytes, deque[WaitingTurn[Turn]]] = {}
        for candidate in others:
            if not candidate.begun:
                queues.setdefault(candidate.owner, deque()).append(candidate)
        counters = {owner: served(owner) + _cost(ahead.get(owner)) for owner in queues}
        yield from _by_counter(queues, counters)


def _one_of_each(
    candidates: Sequence[WaitingTurn[Turn]], owners: Collection[bytes]
) -> dict[bytes, WaitingTurn[Turn]]:
    """The first turn of each owner; a preempted one precedes a new one."""
    found: dict[bytes, WaitingTurn[Turn]] = {}
    for candidate in candidates:
        known = found.get(candidate.owner)
        if candidate.owner in owners and (known is None or (candidate.begun and not known.begun)):
            found[candidate.owner] = candidate
    return found


def _cost(candidate: WaitingTurn[Turn] | None) -> float:
    return 0.0 if candidate is None else candidate.tokens * PROMPT_COST / candidate.weight


def _by_counter(
    queues: dict[bytes, deque[WaitingTurn[Turn]]], counters: Mapping[bytes, float]
) -> Iterator[Turn]:
    # among equals, arrival order
    heap = [(counters[owner], at, owner) for at, owner in enumerate(queues)]
    heapify(heap)
    while heap:
        counter, at, owner = heap[0]
        candidate = queues[owner].popleft()
        yield candidate.turn
        if queues[owner]:
            heapreplace(heap, (counter + _cost(candidate), at, owner))
        else:
            heappop(heap)
