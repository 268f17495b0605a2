"""A stored turn that the engine runs: its events, and how to stop it. Asyncio thread only."""

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

    `headers`: quota headers of an HTTP response.
    """

    def __init__(  # noqa: PLR0913 -- a record, passed by keyword
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
        """Record that the engine recomputed the visible spans; fidelity becomes `exact`."""
        before = self.plan.layout
        after = replace(before, fidelity="exact")
        self.plan = replace(self.plan, layout=after, view=after.view("exact"), edit=None)
        self.log.put(changed(self.accepted.session_id, "rebuilt_exact", before, after))

    async def entries(self) -> AsyncIterator[TurnLogEntry]:
        """Yield the events of the turn. The last is the one `TurnFinished`.

        Unread deltas are merged. A turn without a socket is cancelled when this reader stops,
        unless it runs in the background.
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
        """Send a stop to the engine, even after an earlier one; the engine ignores ended turns."""
        turn = TurnId(self.accepted.response_id)
        self._engine.cancel(CancelTurn(turn=turn, keep=keep, reason=reason))
