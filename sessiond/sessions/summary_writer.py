"""Generates summaries on a fork of a session's context. Asyncio thread only."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from engine.client import TurnEvents
from engine.errors import EngineUnavailableError
from engine.ids import SessionId, TurnId
from engine.messages import (
    CancelTurn,
    CloseContext,
    ForkContext,
    HurryContext,
    Sampling,
    SetContext,
    SubmitTurn,
    TruncateContext,
    TurnDegraded,
    TurnDelta,
    TurnDone,
    TurnFailed,
    TurnIncomplete,
    TurnStarted,
)
from policies.plan import Summarize
from sessiond.facts import InputItem
from sessiond.sessions.endings import usage_of
from sessiond.sessions.live import LiveSession, Placement
from sessiond.sessions.parts import Parts
from sessiond.sessions.summary_request import QUESTION, REQUEST, Reading, reading_of
from sessiond.sessions.transcript import Transcript
from sessiond.store.records import NewSummary, StoredContext
from sessiond.store.shape import Shape

_GREEDY = Sampling(temperature=0.0)


class SummaryError(Exception):
    """No usable summary was generated."""


class NotNowError(Exception):
    """A background summary would delay other turns, or the session has changed."""


@dataclass(slots=True, kw_only=True)
class Writing:
    """One summary to be written, of what a session's tip left behind.

    `fork` names it everywhere: the engine's context, its turn, the stored summary. The pair of
    messages that enters a context is `head`, then the reply. `background` until a turn waits.
    """

    live: LiveSession
    left: Placement
    shape: Shape
    plan: Summarize
    reading: Reading
    request: Sequence[int]
    head: Sequence[int]
    fork: str
    background: bool = field(default=True)


class SummaryWriter:
    """Knows no state between summaries; leaves no context behind in the engine.

    Nothing of a fork is written to disk: what an engine that is lost would leave there could not be
    erased with its session, as nobody knows the ids of a reply that was not finished.
    """

    def __init__(self, parts: Parts, *, transcript: Transcript) -> None:
        self._engine = parts.engine
        self._store = parts.store
        self._transcript = transcript
        self._clock = parts.clock
        self._new_id = parts.new_id

    async def plan(
        self, live: LiveSession, shape: Shape, plan: Summarize, covered: int
    ) -> Writing | None:
        """Plan a summary; None: there is no room for it."""
        if live.prompt is None or live.tip_id is None:
            return None
        request = await self._asked(REQUEST)
        head = await self._asked(QUESTION)
        close = len(self._transcript.close_ids)
        info = self._engine.info
        reading = reading_of(
            shape,
            covered=covered,
            wanted_tokens=plan.summary_tokens - len(head) - close,
            limit_tokens=min(info.max_model_len, info.total_blocks * info.block_size),
            overhead_tokens=len(request) + close,
        )
        if reading is None:
            return None
        left = Placement(
            epoch=self._engine.epoch,
            prompt_id=live.prompt.id,
            tip_id=live.tip_id,
            tokens=shape.tokens,
        )
        return Writing(
            live=live,
            left=left,
            shape=shape,
            plan=plan,
            reading=reading,
            request=request,
            head=head,
            fork=self._new_id("sum"),
        )

    async def write(self, writing: Writing) -> None:
        """Write and store a summary; the caller bounds the time.

        Raises:
            SummaryError: the engine failed, or what the model wrote can't be used.
            NotNowError: nothing is wrong, but nothing was written.
            EngineUnavailableError: the engine is not there.
            StoreError: it could not be read from, or written to.
        """
        try:
            ending = await _ending(await self._submit(writing))
        finally:
            self._close(writing)
        pair = (*writing.head, *ending.kept_ids)
        if not ending.text.strip():
            raise SummaryError("the model wrote nothing")
        if len(pair) > writing.plan.summary_tokens:
            raise SummaryError(
                f"the summary has {len(pair)} tokens, more than {writing.plan.summary_tokens}"
            )
        await self._keep(writing, ending, pair)

    def hurry(self, writing: Writing) -> None:
        """Raise the summary to the priority of a waiting turn."""
        if writing.background:
            writing.background = False
            with suppress(EngineUnavailableError):  # then its turn has failed, too
                self._engine.send(HurryContext(session=SessionId(writing.fork)))

    async def _submit(self, writing: Writing) -> TurnEvents:
        stored: StoredContext | None = None
        while True:
            await self._engine.ready()
            # No await from here to the submit, as in `Placer`.
            fork, length = SessionId(writing.fork), writing.reading.length
            if self._is_there(writing):
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

    def _is_there(self, writing: Writing) -> bool:
        placed = writing.live.placement
        return placed == writing.left and writing.left.epoch == self._engine.epoch

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
        )

    def _close(self, writing: Writing) -> None:
        self._engine.cancel(CancelTurn(turn=TurnId(writing.fork), keep=False))
        with suppress(EngineUnavailableError):  # its KV was lost with the engine
            self._engine.send(CloseContext(session=SessionId(writing.fork), erase=True))

    async def _keep(
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
                # a fork that has no row yet was cut at a turn of its base
                session_id=live.id if live.stored else live.base_session_id or live.id,
                turn_id=turn_id,
                token_ids=pair,
                text=ending.text,
                usage=usage_of(ending.counts, writing.shape),
                created_at=self._clock(),
            )
        )

    async def _asked(self, text: str) -> tuple[int, ...]:
        return await self._transcript.delta((InputItem(role="user", text=text),), generate=True)


async def _ending(events: TurnEvents) -> TurnDone | TurnIncomplete:
    async for event in events:
        match event:
            case TurnStarted() | TurnDelta() | TurnDegraded():
                pass
            case TurnIncomplete(reason="memory_pressure"):
                raise NotNowError("memory pressure")
            case TurnDone() | TurnIncomplete(rolled_back=False):
                return event
            case TurnFailed(code="queue_full"):
                raise NotNowError(event.message)
            case TurnFailed() | TurnIncomplete():
                raise SummaryError(f"its turn ended with {event}")
    raise SummaryError("the engine's events stopped without an ending")
