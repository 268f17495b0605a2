"""The engine's loop on a fake model: for a client (`fake_loop`), or stepped by hand (`Engine`)."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count

import msgspec

from engine.config import EngineConfig
from engine.core.loop import EngineLoop
from engine.ids import SessionId, TurnId
from engine.ipc.messages import (
    CancelTurn,
    CloseContext,
    Edit,
    EditContext,
    EngineInfo,
    ForkContext,
    HintContext,
    ParkContext,
    RaisePriority,
    ReleaseContext,
    Sampling,
    SetContext,
    SubmitTurn,
    TruncateContext,
    TurnDelta,
    TurnDone,
    TurnEvent,
    TurnFailed,
    TurnIncomplete,
    TurnStarted,
)
from engine.ipc.queries import AuditReport, ContextView, EngineStats, GetAudit, GetContext, GetStats
from engine.kv.step import ModelRunner, SequenceStep
from engine.kv.tiers.store import Blocks
from engine.kv.tiers.tiers import Tiers
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_model import Draw, FakeModel, FakeText

GREEDY = Sampling(temperature=0)
CLOSE = [FakeText.STOP, FakeText.NEWLINE]
KV_BYTES_PER_BLOCK = 1000
INFO = EngineInfo(
    model="fake",
    architecture="none",
    device="cpu",
    weights="float32",
    dtype="float32",
    kv_dtype="float32",
    attention="none",
    attention_reason="there is none",
    vocab_size=256,
    max_model_len=1024,
    block_size=16,
    total_blocks=64,
    kv_bytes_per_token=16,
    pool_bytes=16384,
    pool_reason="a stand-in",
    weights_bytes=0,
    activation_bytes=0,
    free_bytes=0,
    max_num_seqs=32,
    max_num_batched_tokens=512,
    max_num_waiting=1024,
    fingerprint="fake",
)


def info_of(**changes: object) -> EngineInfo:
    """What an engine on a fake model says of itself, but for these fields."""
    return msgspec.structs.replace(INFO, **changes)


def fake_loop(
    model: ModelRunner,
    emit: Callable[[TurnEvent], None],
    config: EngineConfig,
    info: EngineInfo,
    tiers: Tiers | None = None,
) -> tuple[EngineLoop, EngineInfo]:
    """The loop on the machine's clock, with what it says of itself: as an engine's client asks."""
    loop = EngineLoop(
        config=config,
        num_blocks=info.total_blocks,
        kv_bytes_per_block=info.kv_bytes_per_token * info.block_size,
        max_model_len=info.max_model_len,
        fingerprint=info.fingerprint,
        runner=model,
        tiers=tiers,
        tokenizer=FakeText(),
        emit=emit,
        clock=time.monotonic,
    )
    return loop, info


class Switch:
    """A runner whose steps another one can take over: assign `runner`."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner

    def __getattr__(self, name: str) -> object:
        return getattr(self.runner, name)

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        return self.runner.execute(batch)


class Engine:
    """`turn` and `submit` name turns t1, t2, ...; events are kept per turn in their order."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        runner: Callable[[int, int], ModelRunner] | None = None,
        draw: Draw | None = None,
        max_model_len: int = 100_000,
        fingerprint: str = "fake",
        tiers: Callable[[Blocks], Tiers] | None = None,
        **settings: object,
    ) -> None:
        self.config = EngineConfig(model="fake", **settings)
        size = self.config.block_size
        self.draw = draw or Draw()
        self.model = FakeModel(num_blocks=num_blocks, block_size=size, draw=self.draw)
        self.clock = FakeClock(tick_s=0.0001)
        self.events: dict[TurnId, list[TurnEvent]] = {}
        self._names = count(1)
        run = runner(num_blocks, size) if runner else self.model
        self.switch = Switch(run)
        self.loop = EngineLoop(
            config=self.config,
            num_blocks=num_blocks,
            kv_bytes_per_block=KV_BYTES_PER_BLOCK,
            max_model_len=max_model_len,
            fingerprint=fingerprint,
            runner=self.switch,
            tiers=tiers(run) if tiers else None,
            move_pages=getattr(run, "move_pages", None),
            tokenizer=FakeText(),
            emit=self._keep,
            clock=self.clock,
        )

    def draft_with(self, speculation: object) -> None:
        """Take drafts from elsewhere than from the sessions' own texts."""
        self.loop._speculation = speculation  # noqa: SLF001 -- the loop makes its own

    def _keep(self, event: TurnEvent) -> None:
        self.events.setdefault(event.turn, []).append(event)

    # --- commands

    def open(
        self,
        session: str,
        ids: list[int] | None = None,
        salt: bytes = b"",
        *,
        volatile: bool = False,
    ) -> None:
        self.loop.handle(
            SetContext(
                session=SessionId(session),
                salt=salt,
                ids=ids or [],
                computed=len(ids or []),
                volatile=volatile,
            )
        )

    def submit(self, session: str, ids: Iterable[int], **fields: object) -> TurnId:
        turn = TurnId(f"t{next(self._names)}")
        fields = {
            "close_ids": CLOSE,
            "stop_ids": [FakeText.STOP],
            "sampling": GREEDY,
            "max_output_tokens": 8,
        } | fields
        self.loop.handle(SubmitTurn(turn=turn, session=SessionId(session), ids=list(ids), **fields))
        return turn

    def turn(self, session: str, ids: Iterable[int], **fields: object) -> TurnId:
        turn = self.submit(session, ids, **fields)
        self.run()
        return turn

    def fork(self, session: str, parent: str, length: int, *, volatile: bool = False) -> None:
        self.loop.handle(
            ForkContext(
                session=SessionId(session),
                parent=SessionId(parent),
                length=length,
                volatile=volatile,
            )
        )

    def edit(self, session: str, edit: Edit) -> None:
        self.loop.handle(EditContext(session=SessionId(session), edit=edit))

    def truncate(self, session: str, length: int) -> None:
        self.loop.handle(TruncateContext(session=SessionId(session), length=length))

    def release(self, session: str) -> None:
        self.loop.handle(ReleaseContext(session=SessionId(session)))

    def park(self, session: str) -> None:
        self.loop.handle(ParkContext(session=SessionId(session)))

    def close(self, session: str) -> None:
        self.loop.handle(CloseContext(session=SessionId(session)))

    def hint(self, session: str, *, ttl_s: float | None = None, priority: int = 1) -> None:
        self.loop.handle(HintContext(session=SessionId(session), ttl_s=ttl_s, priority=priority))

    def raise_priority(self, session: str) -> None:
        self.loop.handle(RaisePriority(session=SessionId(session)))

    def cancel(self, turn: TurnId, *, keep: bool = True, reason: str = "cancelled") -> None:
        self.loop.handle(CancelTurn(turn=turn, keep=keep, reason=reason))

    # --- steps

    def run(self, limit: int = 10_000) -> None:
        """Until nothing is left to do, work in advance of turns included."""
        for _ in range(limit):
            if self.loop.step():
                continue
            if self.loop.rest_s is None:
                return
            self.clock.advance(self.loop.rest_s)
        raise AssertionError(f"still busy after {limit} steps")

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.loop.step()

    def step_until(self, condition: Callable[[], bool], limit: int = 1000) -> None:
        for _ in range(limit):
            if condition():
                return
            assert self.loop.step()
        raise AssertionError(f"not so after {limit} steps")

    # --- what came of it

    def ending(self, turn: TurnId) -> TurnDone | TurnIncomplete | TurnFailed | None:
        last = self.events.get(turn, [None])[-1]
        return last if isinstance(last, TurnDone | TurnIncomplete | TurnFailed) else None

    def started(self, turn: TurnId) -> TurnStarted | None:
        found = [e for e in self.events.get(turn, []) if isinstance(e, TurnStarted)]
        return found[0] if found else None

    def text(self, turn: TurnId) -> str:
        return "".join(e.text for e in self.events.get(turn, []) if isinstance(e, TurnDelta))

    def kept(self, turn: TurnId) -> list[int]:
        ending = self.ending(turn)
        assert isinstance(ending, TurnDone | TurnIncomplete), ending
        return ending.kept_ids

    def view(self, session: str) -> ContextView:
        answer = self.loop.answer(GetContext(session=SessionId(session)))
        assert isinstance(answer, ContextView)
        return answer

    def stats(self) -> EngineStats:
        answer = self.loop.answer(GetStats())
        assert isinstance(answer, EngineStats)
        return answer

    def audit(self) -> AuditReport:
        answer = self.loop.answer(GetAudit())
        assert isinstance(answer, AuditReport)
        return answer

    def check(self) -> None:
        """Every turn ended at most once and began at most once; memory is consistent."""
        report = self.audit()
        assert report.ok, report.violations
        assert report.leaked_blocks == 0
        assert report.free_blocks + report.cached_blocks + report.active_blocks == (
            report.total_blocks
        )
        for events in self.events.values():
            endings = [
                at
                for at, event in enumerate(events)
                if isinstance(event, TurnDone | TurnIncomplete | TurnFailed)
            ]
            assert endings in ([], [len(events) - 1]), events
            assert sum(isinstance(event, TurnStarted) for event in events) <= 1
