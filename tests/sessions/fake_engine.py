"""An EngineClient that keeps contexts as lists and does what the test says, when it says so.

    engine = FakeEngine()
    engine.auto = True             every turn is answered at once, by `reply_to(ids)`
    engine.by_hand = lambda command: ...   but for the turns of which this is true
    engine.opening = "text"        the others begin with this text, before any timer of theirs
    engine.begin(turn_id)          else the test drives it: TurnStarted,
    engine.say(turn_id, "text")    deltas, whose ids are the text's bytes,
    engine.finish(turn_id)         and the ending
    engine.lose()                  the engine dies: contexts are gone, turns fail, epoch rises
    engine.go_away(); engine.come_back()
    engine.hangs = True            it takes commands and does nothing, as in an endless step

It refuses what a real engine would choke on: unknown sessions, busy ones, too long lengths. Of each
context it knows what lost KV would be made again from: `held`, all ids since there was no edit, and
the `edits` since then. A cut into what was there before the last edit forgets the edits.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import takewhile
from zlib import crc32

from msgspec.structs import replace

from engine.errors import EngineUnavailableError
from engine.ids import SessionId
from engine.ipc.client import ContextCommand
from engine.ipc.messages import (
    CancelTurn,
    CloseContext,
    Edit,
    EditContext,
    EngineInfo,
    ForkContext,
    HintContext,
    ParkContext,
    ReleaseContext,
    SetContext,
    SubmitTurn,
    TruncateContext,
    TurnCounts,
    TurnDelta,
    TurnDone,
    TurnEvent,
    TurnFailed,
    TurnIncomplete,
    TurnStarted,
)
from engine.ipc.queries import (
    ContextView,
    ContextViews,
    GetContext,
    GetContexts,
    GetPageKeys,
    GetResidency,
    GetStored,
    PageKeys,
    PageView,
    Query,
    QueryResult,
    Residency,
    StoredBlocks,
    TierInfo,
)
from tests.ipc.loops import INFO

ENDINGS = TurnDone | TurnIncomplete | TurnFailed


def reply_to(ids: list[int]) -> list[int]:
    """What the fake model says after these ids: six bytes of text."""
    return list(f"{crc32(bytes(str(ids), 'ascii')) % 10**6:06}".encode())


def edited(ids: list[int], edits: Sequence[Edit]) -> list[int]:
    """What is visible of all ids that were ever held."""
    visible: list[int] = []
    left = list(ids)
    for edit in edits:
        fed = edit.at - len(visible)
        assert 0 <= fed <= len(left), edit
        visible, left = visible + left[:fed], left[fed:]
        gone = {place for start, stop in edit.dropped for place in range(start, stop)}
        assert gone <= set(range(edit.at)), edit
        visible = [token for place, token in enumerate(visible) if place not in gone]
    return visible + left


def left_by(edit: Edit) -> int:
    """How many ids are visible right after an edit."""
    return edit.at - sum(stop - start for start, stop in edit.dropped)


def page_keys(ids: list[int]) -> list[bytes]:
    """A key for each full page of 16 ids."""
    return [bytes(str(ids[:stop]), "ascii") for stop in range(16, len(ids) + 1, 16)]


def text_of(ids: list[int]) -> str:
    """The text of ids that are bytes; the others have none."""
    return bytes(token for token in ids if token < 256).decode(errors="replace")


class FakeEvents:
    def __init__(self, command: SubmitTurn) -> None:
        self.command = command
        self.turn = command.turn
        self.said: list[int] = []
        self.ended = False
        self._events: asyncio.Queue[TurnEvent] = asyncio.Queue()

    def put(self, event: TurnEvent) -> None:
        assert not self.ended, event
        self.ended = isinstance(event, ENDINGS)
        self._events.put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[TurnEvent]:
        while True:
            event = await self._events.get()
            yield event
            if isinstance(event, ENDINGS):
                return


class FakeEngine:
    def __init__(self, info: EngineInfo = INFO) -> None:
        self.info = info
        self.epoch = 1
        self.restarts = 0
        self.hangs = 0
        self.auto = True
        self.by_hand: Callable[[SubmitTurn], bool] = lambda _: False
        self.opening: str | None = None
        self.contexts: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}  # tokens whose KV is there
        self.residency_at_a_time = 1000  # sessions in an answer about residency
        self.on_disk: dict[str, int] = {}  # blocks
        self.disk_keys: set[bytes] = set()  # they outlive the engine
        self.held: dict[str, list[int]] = {}
        self.edits: dict[str, list[Edit]] = {}
        self.commands: list[ContextCommand | SubmitTurn | CancelTurn] = []
        self.turns: dict[str, FakeEvents] = {}
        self.fail_submits = 0
        self.hangs = False
        self.asked: list[Query] = []
        self._available = asyncio.Event()
        self._available.set()

    @property
    def has_disk_tier(self) -> bool:
        return bool(self.info.tiers)

    @has_disk_tier.setter
    def has_disk_tier(self, value: bool) -> None:
        tiers = (TierInfo(name="disk", bytes=2**20),) if value else ()
        self.info = replace(self.info, tiers=tiers)

    # --- EngineClient --------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        return self._available.is_set()

    async def start(self) -> None:
        pass

    async def ready(self) -> None:
        await self._available.wait()

    async def stop(self) -> None:
        pass

    def send(self, command: ContextCommand) -> None:
        self._need()
        self.commands.append(command)
        match command:
            case SetContext(session=session, ids=ids, edits=edits):
                assert not self._is_busy(session), command
                self.contexts[session], self.cached[session] = edited(ids, edits), 0
                self.held[session], self.edits[session] = list(ids), list(edits)
            case EditContext(session=session, edit=edit):
                assert not self._is_busy(session), command
                assert edit.at == len(self.contexts[session]), command
                self.contexts[session] = edited(self.contexts[session], [edit])
                self.cached[session] = min(self.cached[session], len(self.contexts[session]))
                self.edits[session].append(edit)
            case ForkContext(session=session, parent=parent, length=length):
                assert 0 < length <= len(self.contexts[parent]), command
                self.contexts[session] = self.contexts[parent].copy()
                self.held[session] = self.held[parent].copy()
                self.edits[session] = self.edits[parent].copy()
                self.cached[session] = length
                self._shorten(session, length)
            case TruncateContext(session=session, length=length):
                assert length <= len(self.contexts[session]), command
                self._shorten(session, length)
            case ReleaseContext(session=session) | ParkContext(session=session):
                assert self.hangs or not self._is_busy(session), command
                if self.has_disk_tier and isinstance(command, ParkContext):
                    self.on_disk[session] = self.cached[session] // 16
                    self.disk_keys.update(page_keys(self.contexts[session]))
                self.cached[session] = 0
            case CloseContext(session=session):
                assert self.hangs or not self._is_busy(session), command
                for known in (self.contexts, self.cached, self.held, self.edits):
                    known.pop(session, None)
            case HintContext(session=session):
                assert session in self.contexts, command

    def submit(self, command: SubmitTurn) -> FakeEvents:
        if self.fail_submits:
            self.fail_submits -= 1
            raise EngineUnavailableError("as the test wants")
        self._need()
        assert command.session in self.contexts, command
        assert not self._is_busy(command.session), command
        self.commands.append(command)
        self.turns[command.turn] = events = FakeEvents(command)
        if self.auto and not self.by_hand(command):
            self.begin(command.turn)
            self.say(command.turn)
            self.finish(command.turn)
        elif self.opening is not None:
            self.begin(command.turn)
            self.say(command.turn, self.opening)
        return events

    def cancel(self, command: CancelTurn) -> None:
        self.commands.append(command)
        events = self.turns.get(command.turn)
        if events is None or events.ended or self.hangs:
            return
        if command.reason == "queue_timeout":
            self.fail(command.turn, "queue_timeout")
        elif command.keep:
            self.incomplete(command.turn, command.reason)
        else:
            events.put(self._cut(events, command.reason, rolled_back=True))

    async def ask(self, query: Query) -> QueryResult:
        self._need()
        self.asked.append(query)
        if self.hangs:
            await asyncio.Event().wait()
        if isinstance(query, GetResidency):
            some = query.sessions[: self.residency_at_a_time]
            held = {session: float(self.cached.get(session, 0)) for session in some}
            return Residency(
                kv_bytes={session: kept for session, kept in held.items() if kept},
                looked_at=len(some),
            )
        if isinstance(query, GetContexts):
            views = [self._view(session) for session in query.sessions]
            return ContextViews(contexts=[replace(view, page_table=[]) for view in views])
        if isinstance(query, GetPageKeys):
            return PageKeys(keys=page_keys(query.ids))
        if isinstance(query, GetStored):
            there = [list(takewhile(self.disk_keys.__contains__, keys)) for keys in query.chains]
            return StoredBlocks(blocks=[{"disk": len(keys)} for keys in there])
        assert isinstance(query, GetContext)
        return self._view(query.session)

    def _view(self, session: SessionId) -> ContextView:
        ids = self.contexts.get(session)
        kept = self.cached.get(session, 0)
        blocks = -(-kept // 16)
        page = PageView(block=7, first=0, last=15, base=0, references=1, hashed=True)
        return ContextView(
            session=session,
            known=ids is not None,
            running=self._is_busy(session),
            tokens=len(ids or ()),
            kept_len=kept,
            blocks=blocks,
            shared_blocks=0,
            kv_bytes=blocks * 16 * self.info.kv_bytes_per_token,
            page_table=[page] * blocks,
            disk_blocks=self.on_disk.get(session, 0),
        )

    # --- what the test makes happen ------------------------------------------------------------

    def begin(self, turn: str, *, rebuilt_exact: bool = False) -> None:
        events = self.turns[turn]
        session = events.command.session
        if rebuilt_exact:
            self._forget_edits(session)
        reused = self.cached[session]
        events.put(
            TurnStarted(
                turn=events.turn,
                reused_tokens=reused,
                recomputed_tokens=len(self.contexts[session]) - reused,
                new_tokens=len(events.command.ids),
                queue_ms=0.0,
                rebuilt_exact=rebuilt_exact,
            )
        )

    def say(self, turn: str, text: str | list[int] | None = None) -> None:
        events = self.turns[turn]
        if not events.command.generate:
            return
        if text is None:
            text = reply_to(self.contexts[events.command.session] + list(events.command.ids))
        ids = list(text.encode()) if isinstance(text, str) else text
        events.said += ids
        events.put(TurnDelta(turn=events.turn, text=text_of(ids), tokens=len(ids)))

    def finish(self, turn: str) -> None:
        events = self.turns[turn]
        counts = self._counts(events)
        kept = self._keep(events)
        text = text_of(events.said)
        events.put(TurnDone(turn=events.turn, text=text, kept_ids=kept, counts=counts))

    def incomplete(self, turn: str, reason: str) -> None:
        events = self.turns[turn]
        cut = self._cut(events, reason, rolled_back=False)
        self._keep(events)
        events.put(cut)

    def fail(self, turn: str, code: str) -> None:
        events = self.turns[turn]
        failed = TurnFailed(
            turn=events.turn, code=code, message="as the test wants", counts=self._counts(events)
        )
        events.put(failed)

    def lose(self, *, back: bool = True) -> None:
        self._available.clear()
        for known in (self.contexts, self.cached, self.held, self.edits, self.on_disk):
            known.clear()
        self.epoch += 1
        self.restarts += 1
        for turn, events in self.turns.items():
            if not events.ended:
                self.fail(turn, "engine_restarted")
        if back:
            self.come_back()

    def go_away(self) -> None:
        self._available.clear()

    def come_back(self) -> None:
        self._available.set()

    def running(self) -> list[str]:
        return [turn for turn, events in self.turns.items() if not events.ended]

    def sent(self, kind: type) -> list:
        return [command for command in self.commands if isinstance(command, kind)]

    def _keep(self, events: FakeEvents) -> list[int]:
        command = events.command
        kept = [*events.said, *command.close_ids]
        for ids in (self.contexts[command.session], self.held[command.session]):
            ids += [*command.ids, *kept]
        self.cached[command.session] = len(self.contexts[command.session])
        return kept

    def _shorten(self, session: str, length: int) -> None:
        ids, held, edits = self.contexts[session], self.held[session], self.edits[session]
        del held[len(held) - len(ids) + length :]
        del ids[length:]
        self.cached[session] = min(self.cached[session], length)
        if edits and length < left_by(edits[-1]):
            self._forget_edits(session)

    def _forget_edits(self, session: str) -> None:
        """Its ids are what they would be had nothing ever stood between them."""
        self.held[session], self.edits[session] = self.contexts[session].copy(), []
        self.cached[session] = 0

    def _cut(self, events: FakeEvents, reason: str, *, rolled_back: bool) -> TurnIncomplete:
        return TurnIncomplete(
            turn=events.turn,
            reason=reason,
            text=text_of(events.said),
            kept_ids=[] if rolled_back else [*events.said, *events.command.close_ids],
            rolled_back=rolled_back,
            counts=self._counts(events),
        )

    def _counts(self, events: FakeEvents) -> TurnCounts:
        session = events.command.session
        reused = self.cached.get(session, 0)
        return TurnCounts(
            reused_tokens=reused,
            recomputed_tokens=len(self.contexts.get(session, ())) - reused,
            new_tokens=len(events.command.ids),
            output_tokens=len(events.said),
        )

    def _is_busy(self, session: str) -> bool:
        return any(
            events.command.session == session and not events.ended for events in self.turns.values()
        )

    def _need(self) -> None:
        if not self.available:
            raise EngineUnavailableError("the engine is away")
