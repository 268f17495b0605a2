"""Runs a turn from submit to its end: timers, events, commit 2. One task per turn."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import assert_never

from engine.errors import EngineUnavailableError
from engine.ipc.client import EngineClient, TurnEvents
from engine.ipc.messages import (
    TruncateContext,
    TurnCounts,
    TurnDegraded,
    TurnDelta,
    TurnDone,
    TurnEnding,
    TurnFailed,
    TurnIncomplete,
    TurnStarted,
    TurnWaiting,
)
from sessiond.domain import (
    SessionDegraded,
    SessionWaiting,
    TextDelta,
    TurnBegun,
    TurnError,
    TurnFinished,
    TurnQueued,
    TurnUsage,
)
from sessiond.sessions.demand import PoolDemand
from sessiond.sessions.finish import AbortedEnd, CommittedEnd, end_of, failed, usage_of
from sessiond.sessions.hooks import Hooks
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live_session import EngineResidency, LifecycleEvent
from sessiond.sessions.pending_endings import PendingEndings
from sessiond.sessions.retention import Retention
from sessiond.sessions.turn import Turn
from sessiond.store.errors import NotOwnerError, StaleSessionError, StoreError
from sessiond.store.records import AbortedTurn, CommittedTurn
from sessiond.store.store import Store

logger = logging.getLogger(__name__)

_QUEUED_AFTER_S = 0.05  # a turn that starts sooner sends no `response.queued`
_COMMIT_PAUSES_S = (0.05, 0.2, 0.8, None)  # before each retry; None: give up
_RETRIES_S = 1.0  # no retry of commit 2 begins later than this
_NOT_STORED = TurnError(
    code="internal_error",
    message="the turn could not be stored; the conversation is unchanged",
)
_TAKEN_OVER = TurnError(
    code="internal_error",
    message="the turn could not be stored: the conversation was closed, or continued on another "
    "server after this one's lease expired",
)


class TurnStreamer:
    """Stateless between turns; a turn changes its session only."""

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        engine: EngineClient,
        store: Store,
        pending_endings: PendingEndings,
        limits: ServiceLimits,
        clock: Callable[[], float],
        ticks: Callable[[], float],
        demand: PoolDemand,
        hooks: Hooks,
        retention: Retention,
    ) -> None:
        self._pending_endings = pending_endings
        self._retention = retention
        self._engine = engine
        self._store = store
        self._limits = limits
        self._demand = demand
        self._hooks = hooks
        self._clock = clock
        self._ticks = ticks

    async def stream(
        self, turn: Turn, events: TurnEvents
    ) -> tuple[TurnFinished, LifecycleEvent | None]:
        """Follow the turn to its end and store it; log every event except the last.

        Returns:
            The last event, sent after the turn lock is released, and the transition of the session
            (None: unchanged).
        """
        try:
            ending = await self._follow(turn, events)
            end = end_of(
                ending,
                user_id=turn.caller.user_id,
                accepted=turn.accepted,
                plan=turn.plan,
                now=self._clock(),
            )
            match end:
                case CommittedEnd():
                    return await self._commit_or_abort(turn, end)
                case AbortedEnd():
                    if end.row.error is not None and end.row.error.code == "engine_restarted":
                        turn.live.residency = None  # also when only this context was lost
                    await self._abort(end.row)
                    return end.finished, None
                case _:
                    assert_never(end)
        except Exception:
            logger.exception("turn %s failed unexpectedly", turn.accepted.response_id)
            return await self._break_off(turn)

    async def _follow(self, turn: Turn, events: TurnEvents) -> TurnEnding:
        wait = _WaitReports(turn, self._ticks)
        with ExitStack() as until_ended, ExitStack() as until_started:
            self._start_timers(turn, wait, until_started, until_ended)
            async for event in events:
                match event:
                    case TurnWaiting():
                        wait.note(event)
                    case TurnStarted():
                        until_started.close()
                        turn.log.put(TurnBegun())
                        wait.begun()
                        if event.rebuilt_exact:
                            _rebuilt_exact(turn)
                    case TurnDegraded():
                        session_id = turn.accepted.session_id
                        turn.log.put(
                            SessionDegraded(
                                session_id=session_id, step=event.step, reason=event.reason
                            )
                        )
                    case TurnDelta():
                        self._demand.grow(turn.accepted.response_id, event.tokens)
                        turn.log.put(TextDelta(text=event.text))
                    case TurnDone() | TurnIncomplete() | TurnFailed():
                        if event.counts.rebuilt_exact:
                            _rebuilt_exact(turn)
                        return event
                    case _:
                        assert_never(event)
        raise RuntimeError("the engine's events stopped without an ending")

    def _start_timers(
        self, turn: Turn, wait: "_WaitReports", until_started: ExitStack, until_ended: ExitStack
    ) -> None:
        loop = asyncio.get_running_loop()

        def after(stack: ExitStack, seconds: float, action: Callable[[], None]) -> None:
            stack.callback(loop.call_later(max(0.0, seconds), action).cancel)

        after(until_started, _QUEUED_AFTER_S, lambda: self._report_queued(turn, wait))
        if self._limits.queue_timeout_s:
            after(
                until_started,
                self._limits.queue_timeout_s,
                lambda: turn.end_early(keep=False, reason="queue_timeout"),
            )
        for seconds in self._time_left(turn):
            after(until_ended, seconds, lambda: turn.end_early(keep=True, reason="deadline"))

    def _report_queued(self, turn: Turn, wait: "_WaitReports") -> None:
        turn.log.put(TurnQueued())
        wait.queued()
        self._hooks.degraded("queue")

    def _time_left(self, turn: Turn) -> list[float]:
        left = []
        if self._limits.turn_timeout_s:
            left.append(self._limits.turn_timeout_s)
        if turn.accepted.request.deadline_ms is not None:
            waited = self._ticks() - turn.received_at
            left.append(turn.accepted.request.deadline_ms / 1000 - waited)
        return left

    async def _commit_or_abort(
        self, turn: Turn, end: CommittedEnd
    ) -> tuple[TurnFinished, LifecycleEvent | None]:
        """Make commit 2; on failure abort the turn and truncate its context."""
        error, now = _NOT_STORED, asyncio.get_running_loop().time
        last_try_s = now() + _RETRIES_S
        try:
            if await self._commit(end.row, last_try_s):
                _advance(turn, end.row)
                return end.finished, LifecycleEvent.ADVANCE
        except NotOwnerError:
            error = _TAKEN_OVER
            self._retention.unplace(turn.live)  # its KV is that of a discarded history
        turn.live.stale = True  # a commit that raised may have succeeded
        self._truncate(turn)
        failure = self._failure(turn, error, end.finished.usage)
        if now() > last_try_s:  # the client has waited long enough for the database
            self._pending_endings.add(failure.row)
        else:
            await self._abort(failure.row)
        return failure.finished, None

    async def _break_off(self, turn: Turn) -> tuple[TurnFinished, None]:
        """Abort a turn after a server fault, at any stage."""
        turn.live.stale = True
        self._retention.unplace(turn.live)
        failure = self._failure(turn, _NOT_STORED, usage_of(TurnCounts(), turn.plan.layout))
        await self._abort(failure.row)
        return failure.finished, None

    async def _commit(self, row: CommittedTurn, last_try_s: float) -> bool:
        """Whether the commit succeeded. `last_try_s`: on the loop's clock.

        Raises:
            NotOwnerError: another replica owns the session, or it is closed.
        """
        for pause_s in _COMMIT_PAUSES_S:
            try:
                await self._store.commit_turn(row)
            except NotOwnerError as error:
                logger.warning(
                    "turn %s is not stored, because another server owns the session: %s",
                    row.id,
                    error,
                )
                raise
            except StoreError as error:
                logger.warning("turn %s could not be stored: %s", row.id, error)
                is_late = asyncio.get_running_loop().time() > last_try_s
                if pause_s is None or is_late or isinstance(error, StaleSessionError):
                    break
                await asyncio.sleep(pause_s)
            else:
                return True
        return False

    def _truncate(self, turn: Turn) -> None:
        live = turn.live
        residency = live.residency
        try:
            if residency is not None and residency.epoch == self._engine.epoch:
                self._engine.send(TruncateContext(session=live.id, length=residency.tokens))
        except EngineUnavailableError:
            live.residency = None

    async def _abort(self, row: AbortedTurn) -> None:
        try:
            await self._store.abort_turn(row)
        except Exception as error:
            # The turn lock must be released in any case. The row stays `running`, in no context.
            logger.warning(
                "the end of turn %s could not be stored; it is retried: %s", row.id, error
            )
            self._pending_endings.add(row)

    def _failure(self, turn: Turn, error: TurnError, usage: TurnUsage) -> AbortedEnd:
        return failed(
            error,
            usage,
            user_id=turn.caller.user_id,
            accepted=turn.accepted,
            now=self._clock(),
        )


class _WaitReports:
    """Puts into a turn's log what it waits for, from `response.queued` or its start on."""

    def __init__(self, turn: Turn, ticks: Callable[[], float]) -> None:
        self._turn = turn
        self._log = turn.log
        self._ticks = ticks
        self._is_visible = False
        self._early: TurnWaiting | None = None

    def note(self, event: TurnWaiting) -> None:
        """The turn waits for this."""
        if self._is_visible:
            self._put(event)
        else:
            self._early = event

    def queued(self) -> None:
        """The client got `response.queued`."""
        self._is_visible = True
        if self._early is not None:
            self._put(self._early)

    def begun(self) -> None:
        """The client got the start of the turn: what comes now follows a preemption."""
        self._is_visible = True

    def _put(self, event: TurnWaiting) -> None:
        entry = SessionWaiting(
            session_id=self._turn.session_id,
            response_id=self._turn.response_id,
            cause=event.cause,
            position=event.position,
            since_ms=round(1000 * (self._ticks() - self._turn.received_at)),
        )
        self._log.put(entry)


def _rebuilt_exact(turn: Turn) -> None:
    """Record that the engine rebuilt the context, which stays so if the turn is aborted."""
    if turn.plan.layout.fidelity == "exact":
        return  # reported already
    turn.rebuilt_exact()
    live = turn.live
    if live.residency is not None:
        live.residency = replace(live.residency, view=turn.plan.view)


def _advance(turn: Turn, row: CommittedTurn) -> None:
    live = turn.live
    live.prompt = turn.plan.prompt
    live.layout = turn.plan.layout_after(len(row.reply_ids))
    live.tip_id = row.id
    live.tokens = row.context_tokens
    live.awaits_reply = turn.plan.awaits_reply
    live.digest = row.digest
    if live.residency is not None:
        live.residency = EngineResidency(
            epoch=live.residency.epoch,
            prompt_id=row.prompt_id,
            tip_id=row.id,
            tokens=row.context_tokens,
        )
