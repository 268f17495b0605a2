"""What policies may ask for."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAll:
    """The model sees what it saw, and the new turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepTurns:
    """The model sees the system prompt and these turns: indices into the view's, rising.

    `summary` false: the summary that the view has is dropped, too.
    """

    turns: Sequence[int]
    summary: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarize:
    """All turns before the last `keep_last` (and the summary there is) become one summary.

    It may take `summary_tokens` in the context. `fallback` is what to do when it can't be made.
    """

    keep_last: int
    summary_tokens: int
    fallback: KeepAll | KeepTurns


ContextPlan = KeepAll | KeepTurns | Summarize


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseKv:
    """Give back a context's blocks; full ones still hit until they are taken.

    What is in no tier is lost then.
    """

    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapOut:
    """Write to a tier what is not there yet, then give back the context's blocks."""

    session: str


PlacementAction = ReleaseKv | SwapOut


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """Actions in order. Those after enough has become available are not carried out."""

    actions: Sequence[PlacementAction]
