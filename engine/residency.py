"""Decides which queued turns may run within their user's block limit. Pure."""

from collections import Counter
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

Turn = TypeVar("Turn")


class Demand(NamedTuple, Generic[Turn]):
    """Blocks of one turn's context when the turn has its greatest possible length.

    `most`: the owner's limit; None sets no limit.
    """

    turn: Turn
    owner: bytes
    blocks: int
    most: int | None


def within_limit(waiting: Iterable[Demand[Turn]], running: Iterable[Demand[Turn]]) -> list[Turn]:
    """The waiting turns that may run beside the running ones, in their order.

    Worst cases are added up, so that an admitted turn never has to stop for this limit; idle
    contexts of the user are evicted for it. Later turns of the same user wait behind a turn that
    must wait (otherwise it could wait for ever); other users' turns pass.
    """
    held: Counter[bytes] = Counter()
    for demand in running:
        held[demand.owner] += demand.blocks
    stopped: set[bytes] = set()
    admitted = []
    for demand in waiting:
        owner = demand.owner
        over = demand.most is not None and held[owner] + demand.blocks > demand.most
        if owner in stopped or over:
            stopped.add(owner)
            continue
        held[owner] += demand.blocks
        admitted.append(demand.turn)
    return admitted
