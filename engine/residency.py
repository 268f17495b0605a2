"""Which queued turns may run without their user holding more blocks than allowed. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

Turn = TypeVar("Turn")


class Demand(NamedTuple, Generic[Turn]):
    """What one turn's context holds when the turn is as long as it may be."""

    turn: Turn
    owner: bytes
    blocks: int


def within_limit(
    waiting: Sequence[Demand[Turn]], running: Sequence[Demand[Turn]], max_user_blocks: int
) -> list[Turn]:
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
        if owner in stopped or held[owner] + demand.blocks > max_user_blocks:
            stopped.add(owner)
            continue
        held[owner] += demand.blocks
        admitted.append(demand.turn)
    return admitted
