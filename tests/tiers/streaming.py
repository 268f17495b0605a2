"""A device with streams under tiers, and a model in its stream that writes and reads blocks."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from engine.device.protocol import DeviceEvent
from engine.kv.tiers.mover import Transfer
from engine.kv.tiers.store import Blocks, Bytes, Label
from engine.kv.tiers.stream_mover import DeviceBlocks, StreamMover
from engine.kv.tiers.tiers import Tier, Tiers
from engine.model.runner import TorchRunner
from tests.fakes.fake_device import FakeDevice, FakeStream, copy
from tests.fakes.fake_model import FakeModel
from tests.tiers.support import LateMover, disk_tier, host_tier

BLOCK = 6  # bytes: two parts of a copy are three each
BLOCKS = 12
OWNER = bytes(8)


class Pool:
    """`Blocks` that nobody is to touch from the host."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def read_block(self, block: int, into: Bytes) -> None:
        raise AssertionError("a block of the device was read past its streams")

    def write_block(self, block: int, data: Bytes) -> None:
        raise AssertionError("a block of the device was written past its streams")


def streamed_tiers_of(
    seed: int,
    block_bytes: int,
    *,
    host: int = 0,
    disk: int = 0,
    folder: Path | None = None,
    threads: LateMover | None = None,
) -> Callable[[Blocks], Tiers]:
    """As `tiers_of`, with copies that lag behind a model which computes at once."""
    device = FakeDevice(seed=seed, eager_compute=True, pace=2)

    def build(blocks: Blocks) -> Tiers:
        tiers = [host_tier(host, block_bytes)] if host else []
        if disk:
            assert folder is not None
            tiers.append(disk_tier(folder, disk, block_bytes))
        mover = StreamMover(
            DeviceBlocks(device=device, blocks=blocks, rows=_rows_of(blocks)),
            host=tiers[0].store if host else None,
            threads=threads or LateMover(seed),
            pause=lambda _seconds: device.run_some(3),
        )
        return Tiers(tiers, device=blocks, block_bytes=block_bytes, mover=mover)

    return build


def _rows_of(blocks: object) -> Tensor:
    match blocks:
        case FakeModel():
            return torch.from_numpy(blocks.slot_bytes)
        case TorchRunner():
            return blocks.store.bytes
        case _:
            return _rows_of(blocks.runner)


class Impatient(FakeDevice):
    """A device whose copies lack a wait: `lacks` names it."""

    def __init__(self, seed: int, lacks: str) -> None:
        super().__init__(seed=seed)
        self.lacks = lacks

    def stream(self) -> FakeStream:
        stream = super().stream()
        if self.lacks == ("out waits", "in waits")[len(self.streams) - 2]:
            stream.wait = lambda event: None
        record = stream.record

        def impatient_record() -> DeviceEvent:
            event = record()
            if self.lacks == ("out is over", "in is over")[self.streams.index(stream) - 1]:
                event.query = lambda: True
            return event

        stream.record = impatient_record
        return stream


class Workload:
    """Blocks are written, stored, taken by others, brought back and read, by chance.

    A key's bytes are its number. Whoever reads others in the model's stream is told in `wrong`.
    """

    def __init__(self, seed: int, folder: Path | None = None, device: FakeDevice | None = None):
        self.random = random.Random(seed)
        self.device = device or FakeDevice(seed=seed)
        self.rows = torch.zeros((BLOCKS, BLOCK), dtype=torch.uint8)
        pool = Pool(self.rows)
        tiers = [host_tier(8, BLOCK)]
        if folder is not None:
            tiers.append(disk_tier(folder, 16, BLOCK))
        self.mover = StreamMover(
            DeviceBlocks(device=self.device, blocks=pool, rows=self.rows),
            host=tiers[0].store,
            threads=LateMover(seed),
            pause=lambda _seconds: self.device.run_some(3),
        )
        self.tiers = Tiers(tiers, device=pool, block_bytes=BLOCK, mover=self.mover)
        self.free = list(range(BLOCKS))
        self.holds: dict[int, int] = {}  # key of each block that nobody moves
        self.moving: dict[Transfer, dict[int, int]] = {}
        self.keys = 0
        self.wrong: list[str] = []
        self.did: Counter[str] = Counter()

    def run(self, steps: int) -> "Workload":
        for _ in range(steps):
            action = self.random.choice(
                [self.write, self.write, self.store, self.fetch, self.read, self.drop, self.look]
            )
            action()
            self.device.run_some(self.random.choice([0, 0, 1, 4]))
        while self.moving:
            self.device.run_some(5)
            self.look()
        self.device.run_all()
        return self

    # --- what the model does ---------------------------------------------------------------------

    def write(self) -> None:
        """A step fills a free block."""
        if not self.free:
            return
        block = self.free.pop(self.random.randrange(len(self.free)))
        self.keys = self.keys % 250 + 1
        value = self.keys
        self.holds[block] = value
        self.device.compute.run(
            lambda: copy(self.rows[block], torch.full_like(self.rows[block], value))
        )

    def read(self) -> None:
        """A step reads a block."""
        if not self.holds:
            return
        block = self.random.choice(sorted(self.holds))
        value = self.holds[block]
        self.did["read"] += 1

        def look() -> None:
            if self.rows[block].tolist() != [value] * BLOCK:
                self.wrong.append(f"block {block} is {self.rows[block].tolist()}, not {value}")

        self.device.compute.run(look)

    def drop(self) -> None:
        """A block is anybody's."""
        if self.holds:
            block = self.random.choice(sorted(self.holds))
            del self.holds[block]
            self.free.append(block)

    # --- what is moved ---------------------------------------------------------------------------

    def store(self) -> None:
        tier = self.random.choice(list(self.tiers))
        blocks = self.random.sample(sorted(self.holds), min(3, len(self.holds)))
        pairs = [(block, label(self.holds[block])) for block in blocks]
        for transfer in self.tiers.begin_store(tier, pairs):
            self.moving[transfer] = {block: self.holds.pop(block) for block in transfer.blocks}
            self.did[f"store {tier.name}"] += 1

    def fetch(self) -> None:
        tier = self.random.choice(list(self.tiers))
        there = sorted(tier.index)[:3]
        count = min(len(there), len(self.free))
        if not count:
            return
        self.random.shuffle(self.free)
        blocks, self.free = self.free[:count], self.free[count:]
        pairs = [(block, label(key[0])) for block, key in zip(blocks, there, strict=False)]
        for transfer in self.tiers.begin_fetch(tier, pairs):
            keys = dict(zip(transfer.blocks, (key[0] for key in transfer.keys), strict=True))
            self.moving[transfer] = keys
            self.did[f"fetch {tier.name}"] += 1

    def look(self) -> None:
        for transfer in self.tiers.finished():
            blocks = self.moving.pop(transfer, {})
            if transfer.kind == "fetch":
                assert all(transfer.good)
            self.holds |= blocks
        if self.random.random() < 0.1:
            tier: Tier = self.random.choice(list(self.tiers))
            self.tiers.erase(self.random.sample(sorted(tier.index), min(1, len(tier.index))))


def label(value: int) -> Label:
    return Label(bytes([value]) * 32, OWNER)
