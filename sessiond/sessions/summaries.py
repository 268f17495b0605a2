"""Where the planner looks for a summary that a context policy wants."""

from dataclasses import dataclass
from typing import Protocol

from policies.plan import Summarize
from sessiond.sessions.live import LiveSession
from sessiond.store.shape import Shape, SummaryRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A stored summary. It stands for the first `covered` history tokens: whole turns."""

    ref: SummaryRef
    covered: int


class Summaries(Protocol):
    """Finds summaries, or has them made."""

    async def find(self, live: LiveSession, shape: Shape, plan: Summarize) -> Summary | None:
        """A summary for a session that the caller holds; None: there is none, and won't be."""
        ...


class NoSummaries:
    """Nothing is ever summarised: what a policy falls back to is done."""

    async def find(
        self,
        live: LiveSession,  # noqa: ARG002 -- the Protocol's
        shape: Shape,  # noqa: ARG002 -- the same
        plan: Summarize,  # noqa: ARG002 -- the same
    ) -> Summary | None:
        """None."""
        return None
