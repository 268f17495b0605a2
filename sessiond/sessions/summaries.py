"""Interface through which the planner gets summaries."""

import asyncio
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a turn may wait for a summary: until it is stopped, `seconds` at most."""

    stopped: asyncio.Event
    seconds: float


class Summaries(Protocol):
    """Finds or makes summaries."""

    async def find(
        self, live: LiveSession, shape: Shape, plan: Summarize, patience: Patience | None
    ) -> Summary | None:
        """A summary for a session that the caller holds; None: there is none now.

        `shape` is what the session's tip left behind. It is waited for only if the turn can't go
        on without; `patience` None: not at all.
        """
        ...
