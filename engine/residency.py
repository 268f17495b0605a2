"""Which queued turns may run without their user holding more blocks than allowed. Pure."""

from collections import Counter
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

Turn = TypeVar("Turn")


class Demand(NamedTuple, Generic[Turn]):
    """What one turn's context holds when the turn is as long as it may be.

    `most`: what the owner may hold; None sets no limit.
    """

    turn: Turn
    owner: bytes
    blocks: int
    most: int | None


def within_limit(waiting: Iterable[Demand[Turn]], running: Iterable[Demand[Turn]]) -> list[Turn]:
    """The waiting turns that may run beside the running ones, in their order.

    Worst cases are added up, so that whoever was let in never has to stop for this limit; idle
    contexts of the user give way to them. Behind a turn that must wait its user's later ones
    wait, too (else it could wait for ever); other users pass.
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
