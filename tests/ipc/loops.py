"""Loops without a model, driven by the clients under test; the child process finds them by name."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.config import EngineConfig
from engine.core.loop import EngineLoop
from engine.errors import ConfigError, DeviceLostError, ModelFileError
from engine.ids import TurnId
from engine.ipc.messages import (
    CancelTurn,
    Command,
    EngineInfo,
    SubmitTurn,
    TurnCounts,
    TurnDelta,
    TurnDone,
    TurnEvent,
    TurnIncomplete,
    TurnStarted,
)
from engine.ipc.queries import EngineStats, Query, QueryResult
from engine.kv.step import SequenceStep
from engine.system.histogram import Buckets
from tests.fakes.fake_model import FakeModel
from tests.harness.loop import fake_loop, info_of

Emit = Callable[[TurnEvent], None]

INFO = info_of(model="echo", fingerprint="echo")


class EchoLoop:
    """Gives each turn one word per step, `max_output_tokens` words in all. Counts its steps.

    The turns `crash`, `hang` and `print` do what they are called.
    """

    rest_s = None
    closed = False

    def close(self) -> None:
        self.closed = True

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.steps = 0
        self.commands: list[Command] = []
        self._left: dict[str, int] = {}

    def handle(self, command: Command) -> None:
        self.commands.append(command)
        match command:
            case SubmitTurn(turn="crash"):
                raise ZeroDivisionError("the step went wrong")
            case SubmitTurn(turn="hang"):
                sleep_for_ever()
            case SubmitTurn(turn="print"):
                sys.stderr.write("something\nto read\n")
            case SubmitTurn():
                self._begin(command)
            case CancelTurn() if self._left.pop(command.turn, None) is not None:
                self.emit(_cancelled(command))
            case _:
                pass

    def answer(self, query: Query) -> QueryResult:
        return EngineStats(
            total_blocks=INFO.total_blocks,
            free_blocks=INFO.total_blocks,
            cached_blocks=0,
            active_blocks=0,
            running=len(self._left),
            waiting=0,
            contexts=len(self.commands),
            kept_tokens=0,
            step_times=Buckets(counts=(self.steps,)),
            generated_tokens_total=0,
            reused_tokens_total=0,
            recomputed_tokens_total=0,
            new_tokens_total=0,
            prefix_queries_total=0,
            prefix_hits_total=0,
            preemptions_total=0,
            placement_policy="lru",
            evictions_total={},
            accepted_drafts_total=0,
            rejected_drafts_total=0,
        )

    def step(self, flush: Callable[[], None]) -> bool:
        self.steps += 1
        flush()
        worked = bool(self._left)
        for turn in list(self._left):
            self._left[turn] -= 1
            self.emit(TurnDelta(turn=TurnId(turn), text="word ", tokens=1))
            if self._left[turn] == 0:
                del self._left[turn]
                done = TurnDone(turn=TurnId(turn), text="", kept_ids=[], counts=TurnCounts())
                self.emit(done)
        return worked

    def _begin(self, command: SubmitTurn) -> None:
        self._left[command.turn] = command.max_output_tokens
        self.emit(
            TurnStarted(
                turn=command.turn,
                reused_tokens=0,
                recomputed_tokens=0,
                new_tokens=len(command.ids),
                queue_ms=0.0,
            )
        )


def _cancelled(command: CancelTurn) -> TurnIncomplete:
    return TurnIncomplete(
        turn=command.turn,
        reason="cancelled",
        text="",
        kept_ids=[],
        rolled_back=not command.keep,
        counts=TurnCounts(),
    )


def echo(_config: EngineConfig, emit: Emit) -> tuple[EchoLoop, EngineInfo]:
    return EchoLoop(emit), INFO


class NotedLoop(EchoLoop):
    """Writes down at its end which commands it had."""

    def __init__(self, emit: Emit, notes: Path) -> None:
        super().__init__(emit)
        self._notes = notes

    def close(self) -> None:
        self._notes.write_text("\n".join(map(repr, self.commands)))


def noted(config: EngineConfig, emit: Emit) -> tuple[NotedLoop, EngineInfo]:
    """Its model is the file of its notes."""
    return NotedLoop(emit, Path(config.model)), INFO


def sleep_for_ever() -> None:
    while True:
        time.sleep(60)


def bad_setting(config: EngineConfig, _emit: Emit) -> tuple[EchoLoop, EngineInfo]:
    raise ConfigError("kv_cache_memory", config.kv_cache_memory, "at least 1 MiB for this model")


def bad_file(config: EngineConfig, _emit: Emit) -> tuple[EchoLoop, EngineInfo]:
    raise ModelFileError(f"{config.model} is not a model")


def fault(_config: EngineConfig, _emit: Emit) -> tuple[EchoLoop, EngineInfo]:
    raise KeyError("weights")


def out_of_memory(_config: EngineConfig, _emit: Emit) -> tuple[EchoLoop, EngineInfo]:
    sys.stdout.write("about to allocate\n")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


FATAL_TOKEN = 255


class LosesItsDevice(FakeModel):
    """A step with the fatal token breaks the device for this process."""

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        if any(FATAL_TOKEN in step.token_ids for step in batch):
            raise DeviceLostError("CUDA error: an illegal memory access was encountered")
        return super().execute(batch)


def fake_model(config: EngineConfig, emit: Emit) -> tuple[EngineLoop, EngineInfo]:
    """The real loop over the fake model: 256 blocks."""
    info = info_of(total_blocks=256, max_model_len=4000, block_size=config.block_size)
    model = LosesItsDevice(num_blocks=info.total_blocks, block_size=config.block_size)
    return fake_loop(model, emit, config, info)
