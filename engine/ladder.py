"""What is done when running turns lack blocks and no idle session has any left. Pure.

Turns are ordered by what they are entitled to: priority, then arrival. Blocks only ever go from
those behind to those before, so the first gets what it needs and ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Stream(NamedTuple):
    """A running turn.

    `given_way`: how often it lost its blocks to others. `wanted`: tokens that it may still draw,
    `room`: those of them for which it needs no other block. A turn that draws none wants none: it
    has what it needs.
    """

    priority: int
    given_way: int
    wanted: int
    room: int


@dataclass(frozen=True, slots=True)
class Preempt:
    """That turn gives up its blocks and waits in its old place."""

    index: int


@dataclass(frozen=True, slots=True)
class Shorten:
    """That turn's reply ends after so many more tokens, for which it has blocks."""

    index: int
    tokens: int


@dataclass(frozen=True, slots=True)
class End:
    """That turn ends now, with what it has said."""

    index: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Whoever lacks blocks is left out of this step: others are about to end."""


Rung = Preempt | Shorten | End | Wait


def next_rung(streams: Sequence[Stream], needy: int, most_given_way: int) -> Rung:
    """What to do for the turn number `needy`, which lacks blocks; the most entitled comes first.

    The youngest behind it that has not given way too often does. If all have, the last of them is
    cut, where its priority is lower: to what it has blocks for, or at once if that is nothing.
    Among equals nobody is cut as long as the needy turn itself may give way. Nobody is ever cut for
    whoever is last: those before it go on, and it may when they have ended.
    """
    last = len(streams) - 1
    if last == 0:
        return Preempt(0)  # alone it fits: begun again, it shares its blocks with nobody
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
    """A turn that waits. `blocks`: its worst case; `spent`: it has given way too often."""

    blocks: int
    spent: bool


def seats(
    waiting: Sequence[Candidate], *, running: int, running_blocks: int, limit: int, total: int
) -> int:
    """How many of the waiting turns, in their order, may run beside those that do.

    Up to `limit` run, and beyond it as many as surely end: all worst cases together fit the
    pool. One that gave way too often begins only so, or alone; those behind it wait.
    """
    blocks = running_blocks
    for count, one in enumerate(waiting):
        blocks += one.blocks
        sure = blocks <= total or running + count == 0
        if not sure and (one.spent or running + count >= limit):
            return count
    return len(waiting)
