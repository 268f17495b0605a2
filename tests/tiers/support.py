"""Tiers without threads: moves are carried out when a test, or a seed, says so."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from engine.ipc.queries import TierName
from engine.kv.tiers.disk import DiskStore
from engine.kv.tiers.host import HostStore
from engine.kv.tiers.index import SlotIndex
from engine.kv.tiers.mover import Transfer
from engine.kv.tiers.store import Blocks, Bytes
from engine.kv.tiers.tiers import Rates, Tier, Tiers

AT_ONCE = Rates(read=float("inf"), write=float("inf"))
DISK_SLOT = 4096


class Shelf:
    """Blocks of bytes, each begun as its own number."""

    def __init__(self, blocks: int, block_bytes: int) -> None:
        self.data = np.repeat(np.arange(blocks, dtype=np.uint8), block_bytes).reshape(blocks, -1)

    def read_block(self, block: int, into: Bytes) -> None:
        into[:] = self.data[block]

    def write_block(self, block: int, data: Bytes) -> None:
        self.data[block] = data


class LateMover:
    """Carries a move out only when it is waited for, or, with a seed, by chance at any look.

    Bytes are read and written at that time and not before: a block that was taken or written
    meanwhile spoils them. `hold` keeps all moves back.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.random = None if seed is None else random.Random(seed)
        self.hold = False
        self.transfers: dict[bool, deque[Transfer]] = {True: deque(), False: deque()}
        self.done: list[Transfer] = []
        self.closed = False

    def begin(self, transfer: Transfer) -> None:
        assert not self.closed
        self.transfers[transfer.kind == "fetch"].append(transfer)

    def carry_out(self, count: int = 1) -> None:
        for _ in range(count):
            queues = [queue for queue in self.transfers.values() if queue]
            if not queues:
                return
            transfer = (self.random.choice(queues) if self.random else queues[0]).popleft()
            transfer.carry_out()
            self.done.append(transfer)

    def finished(self) -> list[Transfer]:
        if self.random and not self.hold:
            self.carry_out(self.random.choice([0, 0, 1, 3]))
        done, self.done = self.done, []
        return done

    def wait(self, timeout_s: float) -> None:
        assert timeout_s > 0
        if not self.hold:
            self.carry_out()

    def close(self) -> None:
        self.carry_out(10_000)
        self.closed = True


class PromptMover(LateMover):
    """Carries everything out by the next look."""

    def finished(self) -> list[Transfer]:
        if not self.hold:
            self.carry_out(10_000)
        return super().finished()


def host_tier(slots: int, block_bytes: int) -> Tier:
    store = HostStore(slots, block_bytes)
    return Tier(
        name="host",
        store=store,
        blocks=store,
        index=SlotIndex(slots),
        slot_bytes=block_bytes,
        rates=AT_ONCE,
    )


def disk_tier(folder: Path, slots: int, block_bytes: int, fingerprint: bytes = b"m" * 32) -> Tier:
    slot_bytes = -(-(block_bytes + 60) // 4096) * 4096
    store = DiskStore(
        folder,
        limit_bytes=4096 + slots * slot_bytes,
        block_bytes=block_bytes,
        fingerprint=fingerprint,
    )
    index = SlotIndex(store.capacity)
    index.fill(store.scan())
    return Tier(name="disk", store=store, index=index, slot_bytes=store.slot_bytes, rates=AT_ONCE)


def tiers_of(
    mover: LateMover,
    block_bytes: int,
    *,
    host: int = 0,
    disk: int = 0,
    folder: Path | None = None,
    fingerprint: bytes = b"m" * 32,
) -> Callable[[Blocks], Tiers]:
    """What an engine of the harness takes: tiers of so many slots."""

    def build(device: Blocks) -> Tiers:
        tiers = [host_tier(host, block_bytes)] if host else []
        if disk:
            assert folder is not None
            tiers.append(disk_tier(folder, disk, block_bytes, fingerprint))
        return Tiers(tiers, device=device, block_bytes=block_bytes, mover=mover)

    return build


def names(tiers: Tiers) -> Sequence[TierName]:
    return [tier.name for tier in tiers]
