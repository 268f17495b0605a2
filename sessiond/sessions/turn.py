"""A turn from its receipt to its last event, and its event log. Asyncio thread only.

`EventLogs` keeps the logs of running turns and of recently ended ones for clients that reconnect.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from engine.ids import TurnId
from engine.ipc.client import EngineClient
from engine.ipc.messages import CancelTurn
from sessiond.domain import (
    AttachmentId,
    Caller,
    TextDelta,
    TurnAccepted,
    TurnBegun,
    TurnFinished,
    TurnLogEntry,
    TurnRequest,
)
from sessiond.sessions.fit import changed
from sessiond.sessions.live_session import LiveSession, LockTicket
from sessiond.sessions.plan import TurnPlan

CancelReason = Literal["cancelled", "disconnected"]
StopReason = Literal["cancelled", "disconnected", "deadline", "queue_timeout"]

ENTRY_BYTES = 256  # approximate size of an event without its text


class EntriesLostError(Exception):
    """The next event of a slow reader was dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedEntries:
    """Counts of the dropped events, and the text of the dropped deltas."""

    deltas: int = 0
    others: int = 0
    text: str = ""

    def __bool__(self) -> bool:
        """Whether any event was dropped."""
        return bool(self.deltas or self.others)

    def and_then(self, entry: TurnLogEntry) -> "SkippedEntries":
        """The summary with one more event."""
        if isinstance(entry, TextDelta):
            text = self.text + entry.text
            return SkippedEntries(deltas=self.deltas + 1, others=self.others, text=text)
        return SkippedEntries(deltas=self.deltas, others=self.others + 1, text=self.text)


class EventLog:
    """Events of one turn: every reader gets the same ones in the same order and numbering.

    Consecutive deltas that no reader has read are merged. Of the read events, the newest are kept,
    up to `max_entries` and `max_bytes`.
    """

    def __init__(self, *, max_entries: int = 4096, max_bytes: int = 2**20) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: deque[TurnLogEntry] = deque()
        self._first = 0  # number of the oldest kept event
        self._read = 0  # events read by at least one reader
        self._bytes = 0
        self._filled = asyncio.Event()
        self.skipped = SkippedEntries()

    @property
    def size_bytes(self) -> int:
        """Approximate size of the kept events."""
        return self._bytes + len(self.skipped.text)

    def put(self, entry: TurnLogEntry) -> None:
        """Append an event; never waits for a reader."""
        last = self._entries[-1] if self._end > self._read else None
        if isinstance(entry, TextDelta) and isinstance(last, TextDelta):
            self._entries[-1] = TextDelta(text=last.text + entry.text)
            self._bytes += len(entry.text)
        else:
            self._entries.append(entry)
            self._bytes += _size(entry)
        self._trim()
        self._filled.set()

    async def read(self) -> AsyncIterator[TurnLogEntry]:
        """Yield the events from the oldest kept one to the last, as they arrive.

        Raises:
            EntriesLostError: the reader was too slow.
        """
        at = self._first
        while True:
            while at == self._end:
                self._filled.clear()
                await self._filled.wait()
            if at < self._first:
                raise EntriesLostError
            entry = self._entries[at - self._first]
            at += 1
            self._read = max(self._read, at)
            yield entry
            if isinstance(entry, TurnFinished):
                return

    @property
    def _end(self) -> int:
        return self._first + len(self._entries)

    def _trim(self) -> None:
        """Drop the oldest events that were read."""
        while self._first < self._read and (
            len(self._entries) > self._max_entries or self._bytes > self._max_bytes
        ):
            entry = self._entries.popleft()
            self._first += 1
            self._bytes -= _size(entry)
            self.skipped = self.skipped.and_then(entry)


def _size(entry: TurnLogEntry) -> int:
    text = entry.text if isinstance(entry, TextDelta | TurnFinished) else ""
    return ENTRY_BYTES + len(text)


class Turn:
    """Bound to its session at receipt; `begin` adds its plan, its first event and its log.

    It ends in `Turns.run` or `Turns.drop`, which set `ended`, whether or not its events are read.
    `stopped`: it was cancelled, possibly before the engine got it. `headers`: quota headers of an
    HTTP response.
    """

    plan: TurnPlan
    accepted: TurnAccepted
    headers: Mapping[str, str]
    log: EventLog

    def __init__(  # noqa: PLR0913 -- a record, passed by keyword
        self,
        *,
        caller: Caller,
        request: TurnRequest,
        attachment: AttachmentId | None,
        live: LiveSession,
        ticket: LockTicket,
        response_id: str,
        message_id: str,
        received_at: float,
        engine: EngineClient,
    ) -> None:
        self.caller = caller
        self.request = request
        self.attachment = attachment
        self.live = live
        self.ticket = ticket
        self.response_id = response_id
        self.message_id = message_id
        self.received_at = received_at
        self.begun = False
        self.key: str | None = None  # its idempotency key
        self.ended = asyncio.Event()
        self.stopped = asyncio.Event()
        self.is_followable = asyncio.Event()  # its events have started, or it has ended
        self._engine = engine
        self._is_submitted = False
        self._cancelled: tuple[bool, CancelReason] | None = None

    @property
    def session_id(self) -> str:
        """Id of the turn's session."""
        return self.live.id

    @property
    def owner(self) -> str | None:
        """The user who waits for the turn; None: it runs in the background."""
        return None if self.request.background else self.caller.user_id

    def begin(
        self, plan: TurnPlan, accepted: TurnAccepted, *, headers: Mapping[str, str], log: EventLog
    ) -> None:
        """Add the plan, the first event and the log of a stored turn."""
        self.plan, self.accepted, self.headers, self.log = plan, accepted, headers, log
        for change in plan.changes:
            if self.live.is_news(change):
                log.put(change)

    def submitted(self) -> None:
        """Record that the engine has the turn; an earlier cancel is applied."""
        self._is_submitted = True
        self.is_followable.set()
        if self._cancelled is not None:
            keep, reason = self._cancelled
            self.end_early(keep=keep, reason=reason)

    def end(self) -> None:
        """Mark the turn as ended."""
        self.is_followable.set()
        self.ended.set()
        self._is_submitted = False

    def rebuilt_exact(self) -> None:
        """Record that the engine recomputed the visible spans; fidelity becomes `exact`."""
        before = self.plan.layout
        after = replace(before, fidelity="exact")
        self.plan = replace(self.plan, layout=after, view=after.view("exact"), edit=None)
        self.log.put(changed(self.session_id, "rebuilt_exact", before, after))

    async def entries(self) -> AsyncIterator[TurnLogEntry]:
        """Yield the events of the turn. The last is the one `TurnFinished`.

        Unread deltas are merged. A turn without a socket is cancelled when this reader stops,
        unless it runs in the background.
        """
        try:
            async for entry in self.log.read():
                yield entry
        finally:
            if self.attachment is None and not self.request.background:
                self.cancel(keep=False, reason="disconnected")

    def cancel(self, keep: bool, reason: CancelReason = "cancelled") -> None:
        """Cancel the turn within one step, or as soon as the engine has it. The first call wins."""
        if self._cancelled is None:
            self._cancelled = (keep, reason)
            self.stopped.set()
            if self._is_submitted:
                self.end_early(keep=keep, reason=reason)

    def end_early(self, *, keep: bool, reason: StopReason) -> None:
        """Send a stop to the engine, even after an earlier one; the engine ignores ended turns."""
        turn = TurnId(self.response_id)
        self._engine.cancel(CancelTurn(turn=turn, keep=keep, reason=reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReplay:
    """Past and future events of one turn. `is_stored`: built from its row, without deltas."""

    accepted: TurnAccepted
    log: EventLog
    is_stored: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)  # quota headers would be out of date

    @property
    def skipped(self) -> SkippedEntries:
        """Dropped events before the kept ones."""
        return self.log.skipped

    def entries(self) -> AsyncIterator[TurnLogEntry]:
        """Yield kept events, then new ones. A reader that stops early has no effect on the turn."""
        return self.log.read()


def stored_replay(accepted: TurnAccepted, finished: TurnFinished) -> LogReplay:
    """A replay built from the turn's row."""
    log = EventLog()
    log.put(TurnBegun())
    log.put(finished)
    return LogReplay(accepted=accepted, log=log, is_stored=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    replay: LogReplay
    user_id: str
    until_s: float


class EventLogs:
    """Logs of ended turns are kept for `ttl_s`, up to `max_bytes` together."""

    def __init__(self, *, ttl_s: float, max_bytes: int) -> None:
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._running: dict[str, tuple[str, LogReplay]] = {}
        self._ended: OrderedDict[str, _Kept] = OrderedDict()  # longest ended first
        self._of_session: dict[str, set[str]] = {}  # response ids of ended turns
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._ended)

    @property
    def size_bytes(self) -> int:
        """Approximate size of the logs of ended turns."""
        return self._bytes

    def begin(self, user_id: str, replay: LogReplay) -> None:
        """Register a turn before its first event."""
        self._running[replay.accepted.response_id] = (user_id, replay)

    def end(self, response_id: str, now_s: float) -> None:
        """Mark a log as complete."""
        user_id, replay = self._running.pop(response_id)
        kept = _Kept(replay=replay, user_id=user_id, until_s=now_s + self._ttl_s)
        self._ended[response_id] = kept
        self._of_session.setdefault(replay.accepted.session_id, set()).add(response_id)
        self._bytes += replay.log.size_bytes
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._ended)))

    def find(self, user_id: str, response_id: str) -> LogReplay | None:
        """The log of a user's turn, if kept."""
        if response_id in self._running:
            owner, replay = self._running[response_id]
        elif response_id in self._ended:
            kept = self._ended[response_id]
            owner, replay = kept.user_id, kept.replay
        else:
            return None
        return replay if owner == user_id else None

    def forget(self, response_id: str) -> None:
        """Drop the log of a deleted response."""
        if response_id in self._ended:
            self._drop(response_id)

    def forget_session(self, session_id: str) -> None:
        """Drop the logs of a deleted session."""
        for response_id in tuple(self._of_session.get(session_id, ())):
            self._drop(response_id)

    def reap(self, now_s: float) -> None:
        """Drop expired logs."""
        while self._ended and next(iter(self._ended.values())).until_s <= now_s:
            self._drop(next(iter(self._ended)))

    def _drop(self, response_id: str) -> None:
        replay = self._ended.pop(response_id).replay
        self._bytes -= replay.log.size_bytes
        session_id = replay.accepted.session_id
        of_session = self._of_session[session_id]
        of_session.discard(response_id)
        if not of_session:
            del self._of_session[session_id]
