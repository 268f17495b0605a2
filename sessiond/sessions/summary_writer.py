"""Writes a summary of a long conversation. Asyncio thread only.

The model writes a summary on a copy-on-write fork of the session's context, on the terms of its
user, who is charged for its tokens.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from engine.errors import EngineUnavailableError
from engine.ids import SessionId, TurnId
from engine.ipc.client import EngineClient, TurnEvents
from engine.ipc.messages import (
    CancelTurn,
    CloseContext,
    ForkContext,
    RaisePriority,
    Sampling,
    SetContext,
    SubmitTurn,
    Terms,
    TruncateContext,
    TurnDone,
    TurnEnding,
    TurnFailed,
    TurnIncomplete,
)
from policies.plan import KeepAll, Summarize
from sessiond.domain import InputItem
from sessiond.quota import PriorityName, charged_tokens
from sessiond.sessions.finish import usage_of
from sessiond.sessions.live_session import EngineResidency, LiveSession
from sessiond.sessions.quotas import Quotas, terms_of
from sessiond.sessions.transcript import Transcript
from sessiond.store.context_layout import ContextLayout, Span
from sessiond.store.errors import StoreError
from sessiond.store.records import NewSummary, StoredContext
from sessiond.store.store import Store

REQUEST = (
    "Summarise our conversation so far, and any earlier summary in it, so that it can go on from "
    "your summary alone. Keep names, numbers, decisions, wishes and open questions. Write plain "
    "sentences without a preamble, 150 words at most."
)
"""The prompt for a summary. It is in no stored context."""

QUESTION = "What have we said so far?"
"""The message before a summary in a context."""

MIN_TOKENS = 16
"""Minimum tokens of a summary."""

_LAST_CHARGES_S = 2.0  # a stop waits so long for the ends of cancelled summaries
_GREEDY = Sampling(temperature=0.0)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a summary is written from: the first `length` visible tokens.

    They end with a whole turn, after `read_tokens` tokens of the history. `most_tokens`: maximum
    length of the summary.
    """

    length: int
    read_tokens: int
    most_tokens: int


def covered_by(layout: ContextLayout, keep_last: int) -> int:
    """History tokens that a summary stands for if the last `keep_last` whole turns stay."""
    finished = layout.finished
    replaced = finished[: len(finished) - keep_last]
    return replaced[-1].stop if replaced else 0


def least_covered(layout: ContextLayout, plan: Summarize) -> int:
    """History tokens that a summary must have read to be of use."""
    return 0 if isinstance(plan.fallback, KeepAll) else covered_by(layout, plan.keep_last)


def reading_of(
    layout: ContextLayout,
    *,
    covered: int,
    wanted_tokens: int,
    limit_tokens: int,
    overhead_tokens: int,
) -> Reading | None:
    """The whole context if that leaves room for the summary; else without some newest turns.

    The turns that the summary stands for (`covered`) are always read. `limit_tokens` bounds the
    fork's context. `overhead_tokens`: those of the request and of the end of the reply. None: no
    room.
    """
    if wanted_tokens < MIN_TOKENS:
        return None
    length = layout.prefix_tokens + layout.summary_tokens
    lengths: list[tuple[Span, int]] = []
    for turn in layout.finished:
        length += turn.tokens
        if turn.stop >= covered:
            lengths.append((turn, length))
    best: Reading | None = None
    for turn, length in lengths:
        room = min(wanted_tokens, limit_tokens - length - overhead_tokens)
        if room >= (MIN_TOKENS if best is None else wanted_tokens):
            best = Reading(length=length, read_tokens=turn.stop, most_tokens=room)
    return best


class SummaryError(Exception):
    """No usable summary was generated."""


class NotNowError(Exception):
    """A background summary would delay other turns, or the session has changed."""


@dataclass(slots=True, kw_only=True)
class Writing:
    """A summary to be written of a session's context after its tip (`left`).

    `fork` is the id of the engine's context, of its turn and of the stored summary. A context gets
    `head`, then the reply. `background`: no turn waits for it.
    """

    live: LiveSession
    left: EngineResidency
    layout: ContextLayout
    plan: Summarize
    reading: Reading
    request: Sequence[int]
    head: Sequence[int]
    fork: str
    terms: Terms
    background: bool = field(default=True)


class SummaryWriter:
    """The engine's fork is closed after each summary. Owns the tasks that read to its end.

    They go on when the writing is cancelled: what was computed is charged in any case.

    A fork is volatile, so its KV never reaches the disk tier. A crashed engine would leave it there
    and it could not be deleted with the session: the ids of an unfinished reply are not stored.
    """

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        engine: EngineClient,
        store: Store,
        clock: Callable[[], float],
        new_id: Callable[[str], str],
        transcript: Transcript,
        quotas: Quotas,
    ) -> None:
        self._readings: set[asyncio.Task[TurnEnding]] = set()
        self._quotas = quotas
        self._engine = engine
        self._store = store
        self._transcript = transcript
        self._clock = clock
        self._new_id = new_id

    async def plan(
        self,
        live: LiveSession,
        layout: ContextLayout,
        plan: Summarize,
        priority: PriorityName | None,
    ) -> Writing | None:
        """Plan a summary; None: no room for it. `priority` None: that of the session."""
        if live.prompt is None or live.tip_id is None:
            return None
        request = await self._message(REQUEST)
        head = await self._message(QUESTION)
        close = len(self._transcript.close_ids)
        info = self._engine.info
        reading = reading_of(
            layout,
            covered=covered_by(layout, plan.keep_last),
            wanted_tokens=plan.summary_tokens - len(head) - close,
            limit_tokens=min(info.max_model_len, info.total_blocks * info.block_size),
            overhead_tokens=len(request) + close,
        )
        if reading is None:
            return None
        left = EngineResidency(
            epoch=self._engine.epoch,
            prompt_id=live.prompt.id,
            tip_id=live.tip_id,
            tokens=layout.tokens,
        )
        return Writing(
            live=live,
            left=left,
            layout=layout,
            plan=plan,
            reading=reading,
            request=request,
            head=head,
            fork=self._new_id("sum"),
            terms=terms_of(await self._quotas.of(live.user_id), live, priority),
        )

    async def write(self, writing: Writing) -> None:
        """Write and store a summary; the caller bounds the time.

        Raises:
            SummaryError: the turn failed, or its text can't be used.
            NotNowError: the summary would delay other turns, or the session has changed.
            EngineUnavailableError: the engine is not running.
            StoreError: the context can't be read, or the summary can't be stored.
        """
        try:
            reading = asyncio.create_task(self._read(writing, await self._submit(writing)))
            self._readings.add(reading)
            reading.add_done_callback(self._readings.discard)
            ending = _usable(await asyncio.shield(reading))
        finally:
            self._close(writing)
        pair = (*writing.head, *ending.kept_ids)
        if not ending.text.strip():
            raise SummaryError("the model generated no text")
        if len(pair) > writing.plan.summary_tokens:
            raise SummaryError(
                f"the summary has {len(pair)} tokens, more than {writing.plan.summary_tokens}"
            )
        await self._store_summary(writing, ending, pair)

    async def stop(self) -> None:
        """Charge for cancelled summaries whose end the engine reports in time."""
        if self._readings:
            _, late = await asyncio.wait(self._readings, timeout=_LAST_CHARGES_S)
            for reading in late:
                reading.cancel()

    async def _read(self, writing: Writing, events: TurnEvents) -> TurnEnding:
        """Read to the end of the turn, and charge for it."""
        ending = await _ending(events)
        used = charged_tokens(usage_of(ending.counts, writing.layout))
        try:
            await self._store.charge(writing.live.user_id, writing.fork, used, self._clock())
        except StoreError as error:
            logger.warning("%d tokens of %s could not be charged: %s", used, writing.fork, error)
        return ending

    def raise_priority(self, writing: Writing) -> None:
        """Raise the summary to the priority of a waiting turn."""
        if writing.background:
            writing.background = False
            with suppress(EngineUnavailableError):  # then its turn has failed, too
                self._engine.send(RaisePriority(session=SessionId(writing.fork)))

    async def _submit(self, writing: Writing) -> TurnEvents:
        stored: StoredContext | None = None
        while True:
            await self._engine.ready()
            # No await from here to the submit, as in `EngineSync`.
            fork, length = SessionId(writing.fork), writing.reading.length
            if self._is_resident(writing):
                parent = writing.live.id
                self._engine.send(
                    ForkContext(session=fork, parent=parent, length=length, volatile=True)
                )
            elif writing.background:
                raise NotNowError("its context is no longer in the engine")
            elif stored is None:
                left = writing.left
                stored = await self._store.context(
                    writing.live.user_id, left.prompt_id, left.tip_id
                )
                continue
            else:
                self._set(writing, stored)
            return self._engine.submit(self._command(writing))

    def _is_resident(self, writing: Writing) -> bool:
        residency = writing.live.residency
        return residency == writing.left and writing.left.epoch == self._engine.epoch

    def _set(self, writing: Writing, stored: StoredContext) -> None:
        fork = SessionId(writing.fork)
        command = SetContext(
            session=fork,
            salt=writing.live.salt,
            ids=stored.ids,
            computed=stored.computed,
            edits=stored.edits,
            volatile=True,
        )
        self._engine.send(command)
        self._engine.send(TruncateContext(session=fork, length=writing.reading.length))

    def _command(self, writing: Writing) -> SubmitTurn:
        return SubmitTurn(
            turn=TurnId(writing.fork),
            session=SessionId(writing.fork),
            ids=list(writing.request),
            close_ids=self._transcript.close_ids,
            stop_ids=self._transcript.stop_ids,
            sampling=_GREEDY,
            max_output_tokens=writing.reading.most_tokens,
            background=writing.background,
            terms=writing.terms,
        )

    def _close(self, writing: Writing) -> None:
        self._engine.cancel(CancelTurn(turn=TurnId(writing.fork), keep=False))
        with suppress(EngineUnavailableError):  # its KV was lost with the engine
            self._engine.send(CloseContext(session=SessionId(writing.fork), erase=True))

    async def _store_summary(
        self, writing: Writing, ending: TurnDone | TurnIncomplete, pair: tuple[int, ...]
    ) -> None:
        live, tip_id = writing.live, writing.left.tip_id
        turn_id = tip_id and await self._store.turn_ending_at(
            live.user_id, tip_id, writing.reading.read_tokens
        )
        if turn_id is None:
            raise SummaryError("the turns that it was written from are not stored")
        await self._store.add_summary(
            NewSummary(
                id=writing.fork,
                user_id=live.user_id,
                # a fork without a row was made at a turn of its base
                session_id=live.id if live.stored else live.base_session_id or live.id,
                turn_id=turn_id,
                token_ids=pair,
                text=ending.text,
                usage=usage_of(ending.counts, writing.layout),
                created_at=self._clock(),
            )
        )

    async def _message(self, text: str) -> tuple[int, ...]:
        """Ids of a user's message and of the start of its reply."""
        return await self._transcript.delta((InputItem(role="user", text=text),), generate=True)


async def _ending(events: TurnEvents) -> TurnEnding:
    async for event in events:
        if isinstance(event, TurnEnding):
            return event
    raise SummaryError("the engine's events stopped without an ending")


def _usable(ending: TurnEnding) -> TurnDone | TurnIncomplete:
    match ending:
        case TurnIncomplete(reason="memory_pressure"):
            raise NotNowError("memory pressure")
        case TurnDone() | TurnIncomplete(rolled_back=False):
            return ending
        case TurnFailed(code="queue_full"):
            raise NotNowError(ending.message)
        case TurnFailed() | TurnIncomplete():
            raise SummaryError(f"its turn ended with {ending}")
