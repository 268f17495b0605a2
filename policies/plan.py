"""Actions that policies may return."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAll:
    """Keep the whole context, and add the new turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepTurns:
    """The model sees the system prompt and these turns: indices into the view's, rising.

    `summary` false: the current summary is dropped, too.
    """

    turns: Sequence[int]
    summary: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarize:
    """Replace all turns before the last `keep_last` (and the current summary) by a new summary.

    The summary has at most `summary_tokens`. `fallback` applies if it can't be made. A context of
    more than `threshold` tokens is overdue for it; beyond 1.5 times of that, turns wait for the
    summary (None: only those that can't run without it).
    """

    keep_last: int
    summary_tokens: int
    fallback: KeepAll | KeepTurns
    threshold: int | None = None


ContextPlan = KeepAll | KeepTurns | Summarize


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseKv:
    """Free a context's blocks. Full blocks can be hit until they are taken.

    After that, KV without a copy in a tier is lost.
    """

    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapOut:
    """Write KV that no tier has to a tier, then free the context's blocks."""

    session: str


PlacementAction = ReleaseKv | SwapOut


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """Actions in order. Execution stops when enough blocks are available."""

    actions: Sequence[PlacementAction]
