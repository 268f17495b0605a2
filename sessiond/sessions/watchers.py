"""Who is told of turns that end and requests that are refused. A value; owns nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from sessiond.errors import ErrorCode
from sessiond.facts import ToldTurn, TurnFinished


def _nothing(_: object) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchers:
    """`turn_ended` is called once per turn, whether or not someone reads its facts.

    `turn_refused`: for one that did not begin, with the code that is told; `quota_refused`: with
    the name of the limit that refused a request. `turn_told`: as `turn_ended`, with all that is
    known of the turn, in the context of the task that began it; None: nobody wants that.
    """

    turn_ended: Callable[[TurnFinished], None] = _nothing
    turn_refused: Callable[[ErrorCode], None] = _nothing
    quota_refused: Callable[[str], None] = _nothing
    turn_told: Callable[[ToldTurn], None] | None = None
