"""Actions that policies may return."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAll:
    """Keep the whole context, and add the new turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepTurns:
    """The model sees the system prompt and these turns: indices into the view's, rising.

    `summary` false: the present summary is dropped, too.
    """

    turns: Sequence[int]
    summary: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarize:
    """Replace all turns before the last `keep_last` (and the present summary) by one summary.

    It may take `summary_tokens` in the context. `fallback` applies when it can't be made.
    """

    keep_last: int
    summary_tokens: int
    fallback: KeepAll | KeepTurns


ContextPlan = KeepAll | KeepTurns | Summarize


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseKv:
    """Free a context's blocks; full ones can be hit until they are taken.

    KV that is in no tier is lost then.
    """

    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapOut:
    """Write KV that no tier has to a tier, then free the context's blocks."""

    session: str


PlacementAction = ReleaseKv | SwapOut


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """Actions in order. Those after enough has become available are not executed."""

    actions: Sequence[PlacementAction]
