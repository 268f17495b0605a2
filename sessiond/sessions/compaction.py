"""Schedules summaries, waits for them, backs off after failures. Asyncio thread only.

A summary that the next turn will probably need is written in the background while its session
is idle. A turn that arrives earlier continues without it if it can.
"""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass

from engine.errors import EngineUnavailableError
from engine.ids import SessionId
from policies.plan import KeepAll, Summarize
from sessiond.sessions.live import LiveSession
from sessiond.sessions.parts import Parts
from sessiond.sessions.summaries import Patience, Summary
from sessiond.sessions.summary_request import covered_by
from sessiond.sessions.summary_writer import NotNowError, SummaryError, SummaryWriter, Writing
from sessiond.sessions.transcript import Transcript
from sessiond.store.errors import StoreError
from sessiond.store.shape import Shape

logger = logging.getLogger(__name__)

RETRY_AFTER_TURNS = 8
"""Turns of a session between a failure and the next attempt."""

_MAX_FAILURES_KNOWN = 10_000


@dataclass(slots=True, kw_only=True)
class _Work:
    writing: Writing
    task: asyncio.Task[None]
    timer: asyncio.TimerHandle  # bounds a background summary


class Compaction:
    """Owns the tasks that write summaries: one per session at most."""

    def __init__(self, parts: Parts, *, transcript: Transcript) -> None:
        self._store = parts.store
        self._limits = parts.limits
        self._writer = SummaryWriter(parts, transcript=transcript)
        self._works: dict[SessionId, _Work] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry_at: OrderedDict[SessionId, int] = OrderedDict()  # turns of the session
        self._closed = False

    async def find(
        self, live: LiveSession, shape: Shape, plan: Summarize, patience: Patience | None
    ) -> Summary | None:
        """See `Summaries`."""
        found = await self._ready(live, live.tip_id, shape, plan)
        if found is not None or patience is None or isinstance(plan.fallback, KeepAll):
            return found
        work = await self._hurried(live, shape, plan)
        if work is None:
            return None
        await self._wait(work, patience)
        return await self._ready(live, live.tip_id, shape, plan)

    async def prepare(self, live: LiveSession, shape: Shape, plan: Summarize) -> None:
        """Start the summary for the next turn in the background; returns at once."""
        background = sum(work.writing.background for work in self._works.values())
        if (
            live.id in self._works
            or background >= self._limits.max_background_summaries
            or not self._may_try(live, shape)
        ):
            return
        writing = await self._writer.plan(live, shape, plan, covered_by(shape, plan.keep_last))
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

    async def _ready(
        self, live: LiveSession, tip_id: str | None, shape: Shape, plan: Summarize
    ) -> Summary | None:
        """A stored summary that covers the plan and is not in the context yet."""
        stored = await self._store.newest_summary(live.user_id, tip_id)
        covered = covered_by(shape, plan.keep_last)
        if (
            stored is None
            or stored.ref == shape.summary
            or stored.ref.tokens > plan.summary_tokens
            or stored.read_tokens < covered
        ):
            return None
        return Summary(ref=stored.ref, covered=covered)

    # --- the work ----------------------------------------------------------------------------

    async def _hurried(self, live: LiveSession, shape: Shape, plan: Summarize) -> _Work | None:
        """The running summary, if it fits, at the priority of the waiting turn."""
        covered = covered_by(shape, plan.keep_last)
        work = self._works.get(live.id)
        if work is not None and work.writing.reading.read_tokens >= covered:
            work.timer.cancel()
            self._writer.hurry(work.writing)
            return work
        if not self._may_try(live, shape):
            return None
        writing = await self._writer.plan(live, shape, plan, covered)
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
        if not writing.background:
            timer.cancel()
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
            if writing.background and await self._ready(live, tip_id, writing.shape, writing.plan):
                return
            await self._writer.write(writing)
        except NotNowError as error:
            logger.debug("no background summary of %s: %s", live.id, error)
        except (SummaryError, StoreError, EngineUnavailableError) as error:
            self._fail(writing, str(error))
        except Exception:
            logger.exception("summary of %s failed unexpectedly", live.id)
            self._fail(writing, "internal error")

    async def _wait(self, work: _Work, patience: Patience) -> None:
        """Wait until it is written or the turn's patience ends; then it is cancelled."""
        seconds = min(patience.seconds, self._limits.summary_wait_s)
        stopped = asyncio.create_task(patience.stopped.wait())
        try:
            await asyncio.wait(
                {work.task, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stopped.cancel()
            cut = work.task.cancel()  # False: it is done
        # a stopped turn, or one with less time, is no failure of the summary
        if cut and seconds == self._limits.summary_wait_s and not patience.stopped.is_set():
            self._fail(work.writing, f"not written within {seconds} s")

    # --- failures ----------------------------------------------------------------------------

    def _may_try(self, live: LiveSession, shape: Shape) -> bool:
        return not self._closed and shape.all_turns >= self._retry_at.get(live.id, 0)

    def _fail(self, writing: Writing, why: str) -> None:
        logger.warning("no summary of %s: %s", writing.live.id, why)
        self._retry_at[writing.live.id] = writing.shape.all_turns + RETRY_AFTER_TURNS
        self._retry_at.move_to_end(writing.live.id)
        while len(self._retry_at) > _MAX_FAILURES_KNOWN:
            self._retry_at.popitem(last=False)
