"""When summaries are written, who waits for them, what failures lead to. Asyncio thread only."""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass

from engine.errors import EngineUnavailableError
from engine.ids import SessionId
from policies.plan import KeepAll, Summarize
from sessiond.quota import PriorityName
from sessiond.sessions.fit import Patience, Summary, is_far_beyond, summarized
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live_session import LiveSession
from sessiond.sessions.summary_writer import (
    NotNowError,
    SummaryError,
    SummaryWriter,
    Writing,
    covered_by,
    least_covered,
)
from sessiond.store.context_layout import ContextLayout
from sessiond.store.errors import StoreError
from sessiond.store.store import Store

RETRY_AFTER_TURNS = 8
"""Turns of a session between a failure and the next attempt."""

_MAX_FAILURES_KNOWN = 10_000

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Work:
    writing: Writing
    task: asyncio.Task[None]
    timer: asyncio.TimerHandle  # bounds a summary that no turn waits for, or not for long


class SummaryService:
    """Owns the tasks that write summaries: one per session at most."""

    def __init__(self, *, store: Store, limits: ServiceLimits, writer: SummaryWriter) -> None:
        self._store = store
        self._limits = limits
        self._writer = writer
        self._works: dict[SessionId, _Work] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry_at: OrderedDict[SessionId, int] = OrderedDict()  # turns of the session
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Whether no summary is being written."""
        return not self._works

    async def find(
        self, live: LiveSession, layout: ContextLayout, plan: Summarize, patience: Patience | None
    ) -> Summary | None:
        """See `Summaries`."""
        found = await self._ready(live, live.tip_id, layout, plan)
        if found is not None or patience is None:
            return found
        needs_it = not isinstance(plan.fallback, KeepAll)
        if not needs_it and not is_far_beyond(layout, plan):
            return None
        work = await self._urgent(live, layout, plan, patience.priority)
        if work is None:
            return None
        await self._wait(work, patience, gives_up=needs_it)
        return await self._ready(live, live.tip_id, layout, plan)

    async def prepare(
        self,
        live: LiveSession,
        layout: ContextLayout,
        plan: Summarize,
        priority: PriorityName | None = None,
    ) -> None:
        """Start the summary for the next turn; returns at once.

        It runs in the background, or, if it is long overdue, as a turn of this priority.
        """
        if is_far_beyond(layout, plan):
            if await self._ready(live, live.tip_id, layout, plan) is None:
                await self._urgent(live, layout, plan, priority)
            return
        background = sum(work.writing.background for work in self._works.values())
        if (
            live.id in self._works
            or background >= self._limits.max_background_summaries
            or not self._may_try(live, layout)
        ):
            return
        writing = await self._writer.plan(live, layout, plan, priority)
        if writing is not None:
            self._start(writing)

    def cancel(self, session: SessionId) -> None:
        """Cancel the summary of a session."""
        self._retry_at.pop(session, None)
        work = self._works.pop(session, None)
        if work is not None:
            work.task.cancel()

    def drain(self) -> None:
        """Start no more summaries; cancel those that no turn waits for."""
        self._closed = True
        for session, work in list(self._works.items()):
            if work.writing.background:
                self.cancel(session)

    async def stop(self) -> None:
        """Cancel all summaries."""
        self._closed = True
        for session in list(self._works):
            self.cancel(session)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._writer.stop()

    async def _ready(
        self, live: LiveSession, tip_id: str | None, layout: ContextLayout, plan: Summarize
    ) -> Summary | None:
        """A stored summary that covers the plan and is not in the context yet.

        While everything fits, one that was begun some turns ago will do if it makes the context
        shorter: otherwise a chat that is faster than its summaries would never get one.
        """
        stored = await self._store.newest_summary(live.user_id, tip_id)
        if (
            stored is None
            or stored.ref == layout.summary
            or stored.ref.tokens > plan.summary_tokens
            or stored.read_tokens < least_covered(layout, plan)
        ):
            return None
        covered = covered_by(layout, plan.keep_last)
        if stored.read_tokens >= covered:
            return Summary(ref=stored.ref, covered=covered)
        earlier = Summary(ref=stored.ref, covered=stored.read_tokens)
        return earlier if summarized(layout, earlier).tokens < layout.tokens else None

    # --- tasks -------------------------------------------------------------------------------

    async def _urgent(
        self,
        live: LiveSession,
        layout: ContextLayout,
        plan: Summarize,
        priority: PriorityName | None,
    ) -> _Work | None:
        """The running summary in the foreground, or a new one; None: not possible."""
        work, least = self._works.get(live.id), least_covered(layout, plan)
        if work is not None and work.writing.reading.read_tokens >= least:
            self._writer.raise_priority(work.writing)
            return work
        if not self._may_try(live, layout):
            return None
        writing = await self._writer.plan(live, layout, plan, priority)
        if writing is None:
            return None
        writing.background = False
        if work is not None:
            work.task.cancel()
        return self._start(writing)

    def _start(self, writing: Writing) -> _Work:
        task = asyncio.create_task(self._write(writing))
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._limits.background_summary_s, task.cancel)
        work = _Work(writing=writing, task=task, timer=timer)
        self._works[writing.live.id] = work
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._forget(work))
        return work

    def _forget(self, work: _Work) -> None:
        work.timer.cancel()
        self._tasks.discard(work.task)
        session = work.writing.live.id
        if self._works.get(session) is work:
            del self._works[session]

    async def _write(self, writing: Writing) -> None:
        live, tip_id = writing.live, writing.left.tip_id
        try:
            if writing.background and await self._ready(live, tip_id, writing.layout, writing.plan):
                return
            await self._writer.write(writing)
        except NotNowError as error:
            logger.debug("session %s got no background summary: %s", live.id, error)
        except (SummaryError, StoreError, EngineUnavailableError) as error:
            self._fail(writing, str(error))
        except Exception:
            logger.exception("summary of %s failed unexpectedly", live.id)
            self._fail(writing, "internal error")

    async def _wait(self, work: _Work, patience: Patience, *, gives_up: bool) -> None:
        """Wait until the summary is written, or the turn's patience ends.

        `gives_up`: then the summary is cancelled, otherwise it goes on for the next turn.
        """
        seconds = min(patience.seconds, self._limits.summary_wait_s)
        if gives_up:
            work.timer.cancel()
        stopped = asyncio.create_task(patience.stopped.wait())
        try:
            await asyncio.wait(
                {work.task, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stopped.cancel()
            is_cancelled = gives_up and work.task.cancel()  # False: it is done
        # a stopped turn, or one with a shorter deadline, does not count as a failed summary
        waited_all = seconds == self._limits.summary_wait_s and not patience.stopped.is_set()
        if is_cancelled and waited_all:
            self._fail(work.writing, f"it was not written within {seconds} s")

    # --- failures ----------------------------------------------------------------------------

    def _may_try(self, live: LiveSession, layout: ContextLayout) -> bool:
        return not self._closed and layout.all_turns >= self._retry_at.get(live.id, 0)

    def _fail(self, writing: Writing, why: str) -> None:
        logger.warning("session %s got no summary: %s", writing.live.id, why)
        self._retry_at[writing.live.id] = writing.layout.all_turns + RETRY_AFTER_TURNS
        self._retry_at.move_to_end(writing.live.id)
        while len(self._retry_at) > _MAX_FAILURES_KNOWN:
            self._retry_at.popitem(last=False)
