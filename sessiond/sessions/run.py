"""Runs bound turns from the turn queue to their end. Owns their tasks."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from engine.ipc.client import TurnEvents
from sessiond.domain import AttachmentId, TurnReport
from sessiond.errors import ErrorCode, RequestError
from sessiond.sessions.compaction import SummaryService
from sessiond.sessions.demand import DrainRate, PoolDemand
from sessiond.sessions.hooks import Hooks
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live_session import LifecycleEvent
from sessiond.sessions.plan import Planner
from sessiond.sessions.refusals import degradation_of
from sessiond.sessions.retention import Retention
from sessiond.sessions.start import TurnStarter
from sessiond.sessions.stream import TurnStreamer
from sessiond.sessions.turn import EventLogs, LogReplay, Turn

logger = logging.getLogger(__name__)


class SummaryLookAhead:
    """Runs after a turn is committed, before its turn lock is released."""

    def __init__(self, *, planner: Planner, compaction: SummaryService) -> None:
        self._planner = planner
        self._compaction = compaction

    async def prepare(self, turn: Turn) -> None:
        """Start a summary if a next turn like this one would need it."""
        live, request = turn.live, turn.request
        try:
            seen = await self._planner.foresee(live, request, input_tokens=turn.plan.own_tokens)
            if seen is not None:
                await self._compaction.prepare(live, *seen, request.priority)
        except Exception:  # the turn is stored; its result must not change
            logger.exception("summary look-ahead of session %s failed", live.id)


class TurnRunner:
    """Every bound turn is dropped, refused or run to its end."""

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        limits: ServiceLimits,
        clock: Callable[[], float],
        ticks: Callable[[], float],
        drain_rate: DrainRate,
        demand: PoolDemand,
        hooks: Hooks,
        starter: TurnStarter,
        streamer: TurnStreamer,
        look_ahead: SummaryLookAhead,
        retention: Retention,
    ) -> None:
        self._starter = starter
        self._streamer = streamer
        self._look_ahead = look_ahead
        self._retention = retention
        self._hooks = hooks
        self._limits = limits
        self._clock = clock
        self._ticks = ticks
        self._drain_rate = drain_rate
        self._demand = demand
        self.replays = EventLogs(ttl_s=limits.replay_ttl_s, max_bytes=limits.replay_memory_bytes)
        self._draining = False
        self._bound: dict[str, Turn] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- bound turns -----------------------------------------------------------------------------

    def check_room(self, owner: str | None) -> None:
        """Check that one more turn may be bound; `owner` as in `Turn`.

        Raises:
            RequestError: the server drains, or the maximum number of turns runs or waits.
        """
        self._check_draining()
        if self._is_full(owner):
            raise self._full()

    def add(self, turn: Turn) -> None:
        """Add a bound turn.

        Raises:
            RequestError: another turn took the last place meanwhile.
        """
        is_full = self._is_full(turn.owner)
        self._bound[turn.response_id] = turn
        if is_full:
            refusal = self._full()
            self.drop(turn, refusal)
            raise refusal

    def _is_full(self, owner: str | None) -> bool:
        """Whether no turn of `owner` can be added; a user without a turn always gets a place."""
        if len(self._bound) < self._limits.max_outstanding:
            return False
        return owner is None or any(turn.owner == owner for turn in self._bound.values())

    def find(self, response_id: str) -> Turn | None:
        """A bound turn that has not ended."""
        return self._bound.get(response_id)

    def bound_turns(self) -> list[Turn]:
        """All bound turns that have not ended."""
        return list(self._bound.values())

    def begun_ids(self) -> list[str]:
        """Ids of the turns that have begun and not ended."""
        return [turn.response_id for turn in self._begun()]

    def drop(self, turn: Turn, refusal: RequestError | None = None) -> None:
        """Drop a turn that has not begun; its `run` raises the refusal. A begun turn continues."""
        if not turn.begun and not turn.ended.is_set():
            refusal = refusal or RequestError("internal_error", "the turn was dropped")
            turn.ticket.refuse(refusal)
            turn.live.leave(turn.ticket)
            self._settle(turn)

    # --- turns -----------------------------------------------------------------------------------

    async def run(self, turn: Turn) -> Turn:
        """Wait for the turn lock, then start the turn.

        Raises:
            RequestError: the turn can't be served; its place is released.
        """
        try:
            await turn.ticket.granted()
        except (asyncio.CancelledError, RequestError):
            self.drop(turn)
            raise
        turn.begun = True
        # A separate task: a disconnect between the two commits must not cancel it.
        task = self._spawn(self._begin(turn))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not turn.request.background:
                turn.cancel(keep=False, reason="disconnected")
            raise

    def stop_of(self, attachment: AttachmentId, *, keep: bool) -> None:
        """Cancel the begun turns of a socket or, if it has none, its waiting ones."""
        own = [turn for turn in self._bound.values() if turn.attachment == attachment]
        begun = [turn for turn in own if turn.begun]
        for turn in begun or own:
            turn.cancel(keep)

    async def drain(self) -> None:
        """Refuse new turns; wait for running ones, then cancel them and keep their text."""
        self._draining = True
        # Turns that have not begun are refused at their start.
        await self.ended(self._begun(), self._limits.drain_timeout_s)
        left = self._begun()
        for turn in left:
            turn.cancel(keep=True)
        await self.ended(left, self._limits.cancel_timeout_s)

    async def stop(self) -> None:
        """Cancel every task. The next start marks rows of running turns as failed."""
        self._draining = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for turn in self.bound_turns():
            turn.ended.set()  # waiters must not wait forever

    @staticmethod
    async def ended(turns: Iterable[Turn], within_s: float | None = None) -> None:
        """Wait until all turns have ended, at most `within_s`."""
        waits = [asyncio.ensure_future(turn.ended.wait()) for turn in turns]
        if not waits:
            return
        try:
            await asyncio.wait(waits, timeout=within_s)
        finally:
            for wait in waits:
                wait.cancel()

    def _begun(self) -> list[Turn]:
        return [turn for turn in self._bound.values() if turn.begun]

    async def _begin(self, turn: Turn) -> Turn:
        try:
            self._check_draining()
            events = await self._starter.start(turn)
        except BaseException as error:
            if isinstance(error, RequestError):
                self._note_degradation(error.code)
            turn.live.leave(turn.ticket)
            self._settle(turn)
            raise
        if turn.plan.is_trimmed_for_memory:
            self._hooks.degraded("trim_history")
        replay = LogReplay(accepted=turn.accepted, log=turn.log)
        self.replays.begin(turn.caller.user_id, replay)
        self._spawn(self._drive(turn, events))
        turn.submitted()
        return turn

    async def _drive(self, turn: Turn, events: TurnEvents) -> None:
        finished, event = await self._streamer.stream(turn, events)
        if event is LifecycleEvent.ADVANCE:
            await self._look_ahead.prepare(turn)
        level = None if finished.error is None else degradation_of(finished.error.code)
        if level is None:
            self._drain_rate.ended()
        else:
            self._hooks.degraded(level)
        turn.live.leave(turn.ticket, event)
        self._settle(turn)
        turn.log.put(finished)  # after the lock is free: the reader may begin the next turn
        self.replays.end(turn.response_id, self._ticks())
        self._hooks.turn_ended(finished)
        if self._hooks.turn_reported is not None:
            ended_at = self._clock()
            self._hooks.turn_reported(
                TurnReport(
                    accepted=turn.accepted,
                    finished=finished,
                    received_at=ended_at - (self._ticks() - turn.received_at),
                    ended_at=ended_at,
                )
            )

    def _note_degradation(self, code: ErrorCode) -> None:
        if (level := degradation_of(code)) is not None:
            self._hooks.degraded(level)

    def _settle(self, turn: Turn) -> None:
        if not turn.live.stored and not turn.live.turn_lock.is_locked:
            self._retention.forget(turn.live)
        else:
            self._retention.settle(turn.live, turn.attachment)
        del self._bound[turn.response_id]
        self._demand.leave(turn.response_id)
        turn.end()

    def _full(self) -> RequestError:
        most = self._limits.max_outstanding
        self._hooks.degraded("refuse_new")
        return RequestError(
            "queue_full",
            f"{most} turns are running or waiting, which is the maximum",
            retry_after_s=self._drain_rate.retry_after_s(),
        )

    def _check_draining(self) -> None:
        if self._draining:
            raise RequestError("draining", "the server is shutting down", retry_after_s=1)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RequestError):
            logger.error("the task of a turn failed", exc_info=error)
