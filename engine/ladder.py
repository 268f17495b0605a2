"""Degradation steps when running turns lack blocks and no idle session has any left. Pure.

Turns are ordered by entitlement: priority, then arrival. Blocks only move from less to more
entitled turns, so the first gets what it needs and finishes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Stream(NamedTuple):
    """A running turn.

    `given_way`: how often it was preempted. `wanted`: tokens that it may still sample, `room`:
    those of them for which it needs no other block. A turn that samples none wants none: it has
    what it needs.
    """

    priority: int
    given_way: int
    wanted: int
    room: int


@dataclass(frozen=True, slots=True)
class Preempt:
    """Preempt that turn: it frees its blocks and waits in its old place."""

    index: int


@dataclass(frozen=True, slots=True)
class Shorten:
    """Limit that turn's reply to this many more tokens, for which it has blocks."""

    index: int
    tokens: int


@dataclass(frozen=True, slots=True)
class End:
    """End that turn now, with its reply so far."""

    index: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Leave the needy turn out of this step: other turns are about to end."""


Rung = Preempt | Shorten | End | Wait


def next_rung(streams: Sequence[Stream], needy: int, most_given_way: int) -> Rung:
    """Choose the step for turn number `needy`, which lacks blocks; the most entitled comes first.

    The youngest turn behind it below the preemption limit is preempted. If all have reached it, the
    last of them is shortened if its priority is lower: to the tokens that it has blocks for, or
    ended if there are none. Among equals no turn is shortened as long as the needy turn itself may
    be preempted. No turn is shortened for the last one: those before it go on, and it continues
    when they have ended.
    """
    last = len(streams) - 1
    if last == 0:
        return Preempt(0)  # alone it fits: after a restart it shares its blocks with no other turn
    for index in range(last, needy, -1):
        if streams[index].given_way < most_given_way:
            return Preempt(index)
    one, youngest = streams[needy], streams[last]
    if one.given_way < most_given_way and one.priority <= youngest.priority:
        return Preempt(needy)
    if last == needy or youngest.room >= youngest.wanted:
        return Wait()
    return Shorten(last, youngest.room) if youngest.room else End(last)


class Candidate(NamedTuple):
    """A waiting turn. `blocks`: its worst case; `spent`: it has reached the preemption limit."""

    blocks: int
    spent: bool


def seats(
    waiting: Sequence[Candidate], *, running: int, running_blocks: int, limit: int, total: int
) -> int:
    """Number of waiting turns, in their order, that may run beside the running ones.

    Up to `limit` run, and beyond it as many as are certain to end: all worst cases together fit the
    pool. A turn at the preemption limit starts only in that case, or alone; those behind it wait.
    """
    blocks = running_blocks
    for count, one in enumerate(waiting):
        blocks += one.blocks
        sure = blocks <= total or running + count == 0
        if not sure and (one.spent or running + count >= limit):
            return count
    return len(waiting)
