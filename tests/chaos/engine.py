"""The engine's process of a run: the real loop and tiers, and a fake model that meets faults."""

import errno
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import engine.kv.tiers.disk
from engine.config import EngineConfig
from engine.core.loop import EngineLoop
from engine.ipc.messages import EngineInfo
from engine.kv.step import NOT_FINITE, SequenceStep
from engine.kv.tiers.build import open_tiers
from tests.chaos.orders import Orders
from tests.fakes.fake_model import Draw, FakeModel
from tests.harness.loop import fake_loop, info_of
from tests.ipc.loops import Emit

DRAW = Draw(stop_every=24)
NUM_BLOCKS = 48
BLOCK_SIZE = 16
POOL_TOKENS = NUM_BLOCKS * BLOCK_SIZE
MAX_MODEL_LEN = 2 * POOL_TOKENS
BLOCK_BYTES = 8 * BLOCK_SIZE
HOST_BYTES = 12 * BLOCK_BYTES
DISK_BYTES = 101 * 4096
STEP_FAULTS = ("step-error", "no-memory-for-one", "no-memory-for-all", "nan", "slow-step", "hang")
HELD = "held"  # no fault: steps wait until who gave the order takes it away
_SHORT_STEPS = 40
_FULL_WRITES = 30


def config(folder: Path) -> EngineConfig:
    return EngineConfig(
        model="chaos",
        max_num_seqs=6,
        max_num_batched_tokens=64,
        max_num_waiting=64,
        host_tier_size=HOST_BYTES,
        disk_tier_size=DISK_BYTES,
        disk_tier_path=str(folder / "kv"),
    )


def orders_of(config: EngineConfig) -> Orders:
    return Orders(Path(config.disk_tier_path).parent / "orders")


class ChaosModel(FakeModel):
    """Looks for an order before each step. Which sequence it hits is drawn from a seed."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, draw=DRAW)
        self._orders = orders
        self._random = random.Random(1)
        self._culprit: set[int] = set()
        self._short_steps = 0

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        while self._orders.waiting(HELD):
            time.sleep(0.005)
        kind = self._orders.take(*STEP_FAULTS)
        if kind == "hang":
            hang_for_ever()
        if kind == "slow-step":
            time.sleep(0.2)
        tokens = super().execute(batch)
        match kind:
            case "step-error":
                raise RuntimeError("a step fails on purpose")
            case "no-memory-for-one":
                self._culprit = set(_written(self._random.choice(batch)))
            case "no-memory-for-all":
                self._short_steps = _SHORT_STEPS
            case "nan":
                self._spoil(batch, tokens)
        self._find_memory(batch)
        return tokens

    def _spoil(self, batch: Sequence[SequenceStep], tokens: list[int]) -> None:
        counts = [0 if step.sample is None else step.sample.drafts + 1 for step in batch]
        if tokens:
            hit = self._random.choice([index for index, count in enumerate(counts) if count])
            first = sum(counts[:hit])
            tokens[first : first + counts[hit]] = [NOT_FINITE] * counts[hit]

    def _find_memory(self, batch: Sequence[SequenceStep]) -> None:
        """Raise after all has been written, as a model does that gets as far as its logits."""
        self._short_steps = max(0, self._short_steps - 1)
        rows = sum(len(step.token_ids) for step in batch)
        if self._culprit and any(self._culprit & set(_written(step)) for step in batch):
            if rows == 1:
                self._culprit = set()  # it fails by itself now, and its blocks are others' soon
            raise MemoryError("for one sequence there is none")
        if self._short_steps and rows > 8:  # a token and its guesses can't be parted
            raise MemoryError(f"for {rows} rows there is none")


def hang_for_ever() -> None:
    while True:
        time.sleep(60)


def _written(step: SequenceStep) -> Iterator[int]:
    """The blocks that a step writes to: no other sequence does."""
    left = len(step.token_ids)
    for entry in reversed(step.entries):
        if left <= 0:
            return
        yield entry.block
        left -= entry.last - entry.first + 1


class _FullDisk(ModuleType):
    """Stands for `os` in the disk tier: some writes find the disk full."""

    def __init__(self, orders: Orders) -> None:
        super().__init__("os")
        self._orders = orders
        self._left = 0

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def pwritev(self, file: int, buffers: Sequence[object], offset: int) -> int:
        if self._orders.take("tier-full"):
            self._left = _FULL_WRITES
        if self._left:
            self._left -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwritev(file, buffers, offset)


def build(config: EngineConfig, emit: Emit) -> tuple[EngineLoop, EngineInfo]:
    orders = orders_of(config)
    model = ChaosModel(orders)
    engine.kv.tiers.disk.os = _FullDisk(orders)  # type: ignore[attr-defined]
    tiers, told = open_tiers(config, model, block_bytes=BLOCK_BYTES, fingerprint="chaos")
    info = info_of(
        total_blocks=NUM_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
        kv_bytes_per_token=BLOCK_BYTES // BLOCK_SIZE,
        fingerprint="chaos",
        tiers=told,
    )
    return fake_loop(model, emit, config, info, tiers)
