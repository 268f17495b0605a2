"""One stored turn that the engine runs, as seen by its reader and its cancellers."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from engine.ids import TurnId
from engine.ipc.client import EngineClient
from engine.ipc.messages import CancelTurn
from sessiond.domain import TurnAccepted, TurnLogEntry
from sessiond.sessions.bind import BoundTurn, CancelReason, StopReason
from sessiond.sessions.event_log import EventLog
from sessiond.sessions.fit import changed
from sessiond.sessions.plan import TurnPlan


class Turn:
    """Runs and is stored whether or not its events are read.

    `headers`: what is left of its user's quota, for an answer over HTTP.
    """

    def __init__(  # noqa: PLR0913 -- what a turn is, each by its name
        self,
        *,
        bound: BoundTurn,
        plan: TurnPlan,
        accepted: TurnAccepted,
        engine: EngineClient,
        headers: Mapping[str, str],
        log: EventLog,
    ) -> None:
        self.accepted = accepted
        self.headers = headers
        self.bound = bound
        self.plan = plan
        self.log = log
        self._engine = engine
        self._cancelled = False
        for change in plan.changes:
            self.log.put(change)

    def rebuilt_exact(self) -> None:
        """The engine computed what is visible anew, as if nothing had ever stood in between."""
        before = self.plan.layout
        after = replace(before, fidelity="exact")
        self.plan = replace(self.plan, layout=after, view=after.view("exact"), edit=None)
        self.log.put(changed(self.accepted.session_id, "rebuilt_exact", before, after))

    async def entries(self) -> AsyncIterator[TurnLogEntry]:
        """Yield the events of the turn. The last is the one `TurnFinished`.

        Pending deltas are merged for a slow reader. A turn without a socket has this reader only,
        and is cancelled when it leaves, unless it runs in the background.
        """
        try:
            async for entry in self.log.read():
                yield entry
        finally:
            if self.bound.attachment is None and not self.bound.request.background:
                self.cancel(keep=False, reason="disconnected")

    def cancel(self, keep: bool, reason: CancelReason = "cancelled") -> None:
        """Stop within one step. A repeated call, or one after the end, has no effect."""
        if not self._cancelled:
            self._cancelled = True
            self.end_early(keep=keep, reason=reason)

    def end_early(self, *, keep: bool, reason: StopReason) -> None:
        """Send a stop to the engine, also after an earlier one; it ignores ended turns."""
        turn = TurnId(self.accepted.response_id)
        self._engine.cancel(CancelTurn(turn=turn, keep=keep, reason=reason))
