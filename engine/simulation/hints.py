"""Ideal client hints, derived from the trace's future: an oracle, not a policy. Pure."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, assert_never

from engine.simulation.trace import Request


class Hints(Enum):
    """Knowledge about the future that clients send.

    CLOSE: each session is closed after its last turn. Its blocks can be hit until they are taken.
    DEAD: after every request each session reports which of its blocks no session will read again,
    as in the dead-block LRU.
    """

    CLOSE = "close"
    DEAD = "dead"


class Cut(NamedTuple):
    """From now on a session needs only its first `blocks` blocks.

    `dead`: no other session reads the other blocks, either.
    """

    session: str
    blocks: int
    dead: bool


def cuts(requests: Sequence[Request], hints: Hints) -> Mapping[int, Sequence[Cut]]:
    """Hints after each request, by its index."""
    match hints:
        case Hints.CLOSE:
            last = {request.session: index for index, request in enumerate(requests)}
            return {index: [Cut(session, 0, dead=False)] for session, index in last.items()}
        case Hints.DEAD:
            return _dead(requests)
        case _:
            assert_never(hints)


def last_reads(requests: Sequence[Request]) -> dict[int, int]:
    """For each block the index of the last request that reads it."""
    return {block: index for index, request in enumerate(requests) for block in request.blocks}


def _dead(requests: Sequence[Request]) -> dict[int, list[Cut]]:
    last = last_reads(requests)
    held: dict[str, Sequence[int]] = {}
    holders: dict[int, set[str]] = {}
    said: dict[int, list[Cut]] = {}
    for index, request in enumerate(requests):
        for block in held.get(request.session, ()):
            holders[block].discard(request.session)
        held[request.session] = request.blocks
        for block in request.blocks:
            holders.setdefault(block, set()).add(request.session)
        over = {name for b in request.blocks if last[b] == index for name in holders[b]}
        for name in sorted(over):
            keep = sum(last[block] > index for block in held[name])
            for block in held[name][keep:]:
                holders[block].discard(name)
            held[name] = held[name][:keep]
            said.setdefault(index, []).append(Cut(name, keep, dead=True))
    return said
