"""One stored turn that the engine works on, as its reader and its cancellers see it."""

from collections.abc import AsyncIterator
from dataclasses import replace

from engine.client import EngineClient
from engine.ids import TurnId
from engine.messages import CancelTurn
from sessiond.facts import TurnAccepted, TurnFact
from sessiond.sessions.bound import BoundTurn, CancelReason, StopReason
from sessiond.sessions.fact_stream import FactStream
from sessiond.sessions.fitting import changed
from sessiond.sessions.planning import TurnPlan


class Turn:
    """Goes on and is stored whether or not its facts are read."""

    def __init__(
        self,
        *,
        bound: BoundTurn,
        plan: TurnPlan,
        accepted: TurnAccepted,
        engine: EngineClient,
    ) -> None:
        self.accepted = accepted
        self.bound = bound
        self.plan = plan
        self.stream = FactStream()
        self._engine = engine
        self._cancelled = False
        for change in plan.changes:
            self.stream.put(change)

    def rebuilt_exact(self) -> None:
        """The engine computed what is visible anew, as if nothing had ever stood in between."""
        before = self.plan.shape
        after = replace(before, fidelity="exact")
        self.plan = replace(self.plan, shape=after, view=after.view("exact"), edit=None)
        self.stream.put(changed(self.accepted.session_id, "rebuilt_exact", before, after))

    async def facts(self) -> AsyncIterator[TurnFact]:
        """What becomes of the turn; once, by one task. The last fact is the one `TurnFinished`.

        A slow reader finds waiting deltas merged into one. A turn of no socket has its reader
        only, and ends when the reader leaves.
        """
        try:
            async for fact in self.stream:
                yield fact
        finally:
            if self.bound.attachment is None and not self.bound.request.background:
                self.cancel(keep=False, reason="disconnected")

    def cancel(self, keep: bool, reason: CancelReason = "cancelled") -> None:
        """Stop within one step. Twice, or after the end: nothing happens."""
        if not self._cancelled:
            self._cancelled = True
            self.end_early(keep=keep, reason=reason)

    def end_early(self, *, keep: bool, reason: StopReason) -> None:
        """Tell the engine to stop, whatever it was told before; ended turns it does not know."""
        turn = TurnId(self.accepted.response_id)
        self._engine.cancel(CancelTurn(turn=turn, keep=keep, reason=reason))
