"""Hooks for ended turns and refused requests. A value; owns nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from sessiond.domain import DegradationLevel, TurnFinished, TurnReport


def _nothing(_: object) -> None:
    """The default hook: does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """`turn_ended` is called once per turn, whether or not its events are read.

    `degraded`: with each degradation step before the engine has the turn; `quota_refused`: with
    the name of the exceeded limit. `turn_reported`: as `turn_ended`, with the first and last event,
    in the context of the task that started the turn; None: not called.
    """

    turn_ended: Callable[[TurnFinished], None] = _nothing
    degraded: Callable[[DegradationLevel], None] = _nothing
    quota_refused: Callable[[str], None] = _nothing
    turn_reported: Callable[[TurnReport], None] | None = None
