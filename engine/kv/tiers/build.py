"""Opens and measures the configured tiers."""

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.config import EngineConfig
from engine.ipc.queries import TierInfo, TierName
from engine.kv.tiers.disk import RUN, DiskStore, TierBusyError
from engine.kv.tiers.host import HostStore
from engine.kv.tiers.index import SlotIndex
from engine.kv.tiers.mover import Mover, ThreadMover
from engine.kv.tiers.store import Blocks, BlockStore, Bytes, Label
from engine.kv.tiers.stream_mover import DeviceBlocks, StreamMover
from engine.kv.tiers.tiers import Rates, Tier, Tiers

_log = logging.getLogger(__name__)

_MEASURED_S = 0.02  # time of a measurement, which takes its best round
_ROUNDS = 2  # minimum


class OpenTiers(NamedTuple):
    """The open tiers, and reports about the requested ones."""

    tiers: Tiers
    info: tuple[TierInfo, ...]


def open_tiers(
    config: EngineConfig,
    device: Blocks,
    *,
    block_bytes: int,
    fingerprint: str,
    streamed: DeviceBlocks | None = None,
) -> OpenTiers:
    """Open host memory and the disk's file. A tier that is not available reports a reason.

    Without a prefix cache there are no keys to store blocks under, so there are no tiers.
    `streamed`: the same device, if it copies asynchronously; its blocks are still empty.
    """
    asked: dict[TierName, int] = {"host": config.host_tier_size, "disk": config.disk_tier_size}
    tiers, info = [], []
    for name, size in asked.items():
        if not size:
            continue
        tier: Tier | str = "there is no prefix cache (--no-enable-prefix-caching)"
        if config.enable_prefix_caching and name == "host":
            tier = _open_host(size, block_bytes, streamed)
        elif config.enable_prefix_caching:
            tier = _open_disk(Path(config.disk_tier_path), size, block_bytes, fingerprint)
        if isinstance(tier, str):
            _log.warning("the %s tier is off: %s", name, tier)
            info.append(TierInfo(name=name, bytes=size, reason=tier))
            continue
        tiers.append(tier)
        info.append(_tier_info(tier, size))
    mover = _mover(tiers, streamed)
    return OpenTiers(Tiers(tiers, device=device, block_bytes=block_bytes, mover=mover), tuple(info))


def _mover(tiers: Sequence[Tier], streamed: DeviceBlocks | None) -> Mover:
    if streamed is None or not tiers:
        return ThreadMover()
    stores = (tier.store for tier in tiers)
    host = next((store for store in stores if isinstance(store, HostStore)), None)
    return StreamMover(streamed, host=host, threads=ThreadMover())


def _tier_info(tier: Tier, size: int) -> TierInfo:
    return TierInfo(
        name=tier.name,
        bytes=size,
        blocks=tier.index.capacity,
        read_rate=tier.rates.read,
        write_rate=tier.rates.write,
        path=str(tier.store.path) if isinstance(tier.store, DiskStore) else "",
    )


def _open_host(size: int, block_bytes: int, streamed: DeviceBlocks | None) -> Tier | str:
    capacity = size // block_bytes
    if not capacity:
        return f"its size must be {block_bytes} bytes or more, one block (got {size})"
    try:
        if streamed is None:
            store = HostStore(capacity, block_bytes)
        else:
            pinned = streamed.device.pinned
            store = HostStore(capacity, block_bytes, allocate=lambda count: pinned(count).numpy())
    except (OSError, MemoryError, RuntimeError) as error:
        return str(error)
    slots = list(range(min(RUN, capacity)))
    if streamed is None:
        rates = _measure(store, block_bytes, slots)
    else:
        rates = _measure_copies(streamed, store, len(slots))
    return Tier(
        name="host",
        store=store,
        blocks=store,
        index=SlotIndex(capacity),
        slot_bytes=block_bytes,
        rates=rates,
    )


def _open_disk(folder: Path, size: int, block_bytes: int, fingerprint: str) -> Tier | str:
    try:
        store = DiskStore(
            folder,
            limit_bytes=size,
            block_bytes=block_bytes,
            fingerprint=hashlib.sha256(fingerprint.encode()).digest(),
        )
    except (OSError, TierBusyError) as error:
        return str(error)
    index = SlotIndex(store.capacity)
    stored = store.scan()
    index.fill(stored)
    # Measured on free slots only, so a full tier has no write rate; reads use occupied slots.
    free = [slot for slot in range(store.capacity) if slot not in stored][:RUN]
    rates = _measure(store, block_bytes, free) if free else _measure_reads(store, stored)
    return Tier(name="disk", store=store, index=index, slot_bytes=store.slot_bytes, rates=rates)


class _Scratch:
    """One scratch block that stands for all blocks."""

    def __init__(self, block_bytes: int) -> None:
        self._data = np.ones(block_bytes, dtype=np.uint8)

    def read_block(self, block: int, into: Bytes) -> None:  # noqa: ARG002 -- the Protocol's
        into[:] = self._data

    def write_block(self, block: int, data: Bytes) -> None:  # noqa: ARG002 -- the same
        self._data[:] = data


def _measure(store: BlockStore, block_bytes: int, slots: list[int]) -> Rates:
    """Write some blocks, read them, overwrite them with zeros."""
    scratch, size = _Scratch(block_bytes), block_bytes * len(slots)
    labels = [Label(number.to_bytes(32, "big"), bytes(8)) for number in range(len(slots))]
    keys = [label.key for label in labels]
    write_s = _best_s(lambda: store.write(slots, labels, scratch, slots))
    read_s = _best_s(lambda: store.read(slots, keys, scratch, slots))
    store.erase(slots)
    return Rates(read=size / read_s, write=size / write_s)


def _measure_copies(streamed: DeviceBlocks, store: HostStore, count: int) -> Rates:
    """Copy some slots to the device and back."""
    import torch

    count = min(count, len(streamed.rows))
    on_device, on_host = streamed.rows[:count], torch.from_numpy(store.slots[:count])
    stream = streamed.device.stream()

    def copy(target: "torch.Tensor", source: "torch.Tensor") -> None:
        stream.copy(target, source)
        stream.synchronize()

    size = on_host.nbytes
    read_s = _best_s(lambda: copy(on_device, on_host))
    write_s = _best_s(lambda: copy(on_host, on_device))
    return Rates(read=size / read_s, write=size / write_s)


def _measure_reads(store: DiskStore, stored: dict[int, Label]) -> Rates:
    slots = list(stored)[:RUN]
    keys = [stored[slot].key for slot in slots]
    scratch = _Scratch(store.block_bytes)
    read_s = _best_s(lambda: store.read(slots, keys, scratch, slots))
    return Rates(read=store.block_bytes * len(keys) / read_s, write=0.0)


def _best_s(action: Callable[[], object]) -> float:
    best_s, until_s = float("inf"), time.perf_counter() + _MEASURED_S
    rounds = 0
    while rounds < _ROUNDS or time.perf_counter() < until_s:
        started_s = time.perf_counter()
        action()
        best_s = min(best_s, time.perf_counter() - started_s)
        rounds += 1
    return best_s
