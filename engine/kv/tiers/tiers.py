"""The tiers below the device, fastest first, and transfers to and from them. Loop thread only.

Every transfer begins here and ends in `finished`; in between its slots are reserved, and its caller
keeps the blocks on the device.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from engine.ipc.queries import TierName
from engine.kv.tiers.disk import RUN
from engine.kv.tiers.index import SlotIndex
from engine.kv.tiers.mover import MoveKind, Mover, Transfer
from engine.kv.tiers.store import Blocks, BlockStore, Bytes, Label
from engine.system.histogram import MOVE_SECONDS, Histogram

Pair = tuple[int, Label]
"""A block on the device, and its present or future label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes per second, as measured at start."""

    read: float
    write: float


@dataclass(slots=True, kw_only=True)
class Flow:
    """Transfers since the start, their bytes and times. `refused`: blocks that failed."""

    stored_bytes: int = 0
    fetched_bytes: int = 0
    store_times: Histogram = field(default_factory=lambda: Histogram(MOVE_SECONDS))
    fetch_times: Histogram = field(default_factory=lambda: Histogram(MOVE_SECONDS))
    refused: int = 0


@dataclass(slots=True, kw_only=True)
class Tier:
    """One tier. `slot_bytes`: space of a block there.

    `blocks`: its slots as a source of transfers; None: they can't be one.
    """

    name: TierName
    store: BlockStore
    blocks: Blocks | None = None
    index: SlotIndex
    slot_bytes: int
    rates: Rates
    flow: Flow = field(default_factory=Flow)


class Tiers:
    """Transfers blocks of `device`, `block_bytes` each. Without tiers, evicted KV is lost."""

    def __init__(
        self, tiers: Sequence[Tier] = (), *, device: Blocks, block_bytes: int, mover: Mover
    ) -> None:
        self._tiers = list(tiers)
        self._device = device
        self._mover = mover
        self.block_bytes = block_bytes
        self.in_flight = 0  # transfers
        self._unwanted: set[tuple[str, bytes]] = set()
        self._most: dict[tuple[TierName, bytes], int] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._tiers)

    def __iter__(self) -> Iterator[Tier]:
        return iter(self._tiers)

    @property
    def block_restore_s(self) -> float:
        """Seconds to restore a block from the first tier."""
        return self.block_bytes / self._tiers[0].rates.read if self._tiers else 0.0

    def holding(self, key: bytes) -> Tier | None:
        """The fastest tier that has a key's block."""
        for tier in self._tiers:
            if key in tier.index:
                return tier
        return None

    def has(self, key: bytes) -> bool:
        """Whether a tier has a key's block, or it is being written to one."""
        return any(tier.index.is_written(key) for tier in self._tiers)

    def limit(self, owner: bytes, name: TierName, most_bytes: int | None) -> None:
        """Set the limit of an owner's bytes in a tier; None: no limit."""
        if most_bytes is None:
            self._most.pop((name, owner), None)
        else:
            self._most[name, owner] = most_bytes

    def begin_store(
        self, tier: Tier, pairs: Sequence[Pair], keep: Container[bytes] = ()
    ) -> list[Transfer]:
        """Begin to write blocks of the device that a tier lacks, as far as it has room.

        Its least recently used blocks make room, but not those whose keys are in `keep`.
        """
        return self._store(tier, self._device, pairs, keep)

    def begin_fetch(self, tier: Tier, pairs: Sequence[Pair]) -> list[Transfer]:
        """Begin to read blocks of a tier into blocks of the device."""
        transfers = []
        for start in range(0, len(pairs), RUN):
            run = pairs[start : start + RUN]
            slots = [tier.index.begin_read(label.key) for _, label in run]
            transfers.append(self._begin("fetch", tier, run, slots, self._device))
        return transfers

    def begin_demotion(self, key: bytes) -> Transfer | None:
        """Begin to copy a block from the first of two tiers to the second; None if impossible."""
        if len(self._tiers) < 2:
            return None
        upper, lower = self._tiers[:2]
        if key not in upper.index or upper.blocks is None:
            return None
        label = Label(key, upper.index.owner_of(key))
        slot = self._claim(lower, label)
        if slot is None:
            return None
        pair = (upper.index.begin_read(key), label)
        return self._begin("store", lower, [pair], [slot], upper.blocks)

    def erase(self, keys: Sequence[bytes]) -> None:
        """Drop and overwrite blocks of these keys, those in transfer included.

        Blocks in transfer are overwritten when it has ended: otherwise a file that is reopened at
        start would still contain them.
        """
        for tier in self._tiers:
            self._overwrite(tier, [tier.index.drop(key) for key in keys])
            for key in keys:
                if tier.index.is_written(key):
                    self._unwanted.add((tier.name, key))

    def _overwrite(self, tier: Tier, freed: Sequence[int | None]) -> None:
        """Fill freed slots with zeros before they are reused."""
        slots = [slot for slot in freed if slot is not None]
        for start in range(0, len(slots), RUN):
            run = slots[start : start + RUN]
            if self._closed:
                tier.store.erase(run)
            else:
                self._begin("erase", tier, [], run, self._device)

    def finished(self) -> list[Transfer]:
        """Record finished transfers, and return them."""
        transfers = self._mover.finished() if self.in_flight else []
        for transfer in transfers:
            self.in_flight -= 1
            self._finish(transfer, self._named(transfer.tier))
        return transfers

    def wait(self, timeout_s: float) -> None:
        """Sleep until a transfer has ended, or the time is over."""
        if self.in_flight:
            self._mover.wait(timeout_s)

    def close(self) -> list[Transfer]:
        """Execute all started transfers, and close; return the last ones."""
        self._mover.close()
        self._closed = True
        transfers = self.finished()
        for tier in self._tiers:
            tier.store.close()
        self._tiers = []
        return transfers

    def violations(self) -> Iterator[str]:
        """Yield broken invariants. For audits."""
        for tier in self._tiers:
            for text in tier.index.violations():
                yield f"{tier.name} tier: {text}"
            if tier.index.in_transfer and not self.in_flight:
                yield f"{tier.name} tier: {tier.index.in_transfer} slots are in no transfer"

    def _named(self, name: str) -> Tier:
        return next(tier for tier in self._tiers if tier.name == name)

    def _store(
        self, tier: Tier, source: Blocks, pairs: Sequence[Pair], keep: Container[bytes]
    ) -> list[Transfer]:
        claimed = []
        for block, label in pairs:
            slot = self._claim(tier, label, keep)
            if slot is not None:
                claimed.append((slot, (block, label)))
        transfers = []
        for start in range(0, len(claimed), RUN):
            run = claimed[start : start + RUN]
            pairs, slots = [pair for _, pair in run], [slot for slot, _ in run]
            transfers.append(self._begin("store", tier, pairs, slots, source))
        return transfers

    def _claim(self, tier: Tier, label: Label, keep: Container[bytes] = ()) -> int | None:
        most = self._most.get((tier.name, label.owner))
        return tier.index.claim(label, None if most is None else most // tier.slot_bytes, keep)

    def _begin(
        self,
        kind: MoveKind,
        tier: Tier,
        pairs: Sequence[Pair],
        slots: Sequence[int],
        other: Blocks,
    ) -> Transfer:
        transfer = Transfer(
            kind=kind,
            tier=tier.name,
            store=tier.store,
            slots=slots,
            labels=[label for _, label in pairs],
            other=other,
            blocks=[block for block, _ in pairs],
        )
        self.in_flight += 1
        self._mover.begin(transfer)
        return transfer

    def _finish(self, transfer: Transfer, tier: Tier) -> None:
        flow, moved = tier.flow, sum(transfer.good) * self.block_bytes
        flow.refused += transfer.good.count(False)
        match transfer.kind:
            case "store":
                for key, good in zip(transfer.keys, transfer.good, strict=True):
                    tier.index.finish_write(key, good=good)
                    if (tier.name, key) in self._unwanted:
                        self._unwanted.remove((tier.name, key))
                        self._overwrite(tier, [tier.index.drop(key)])
                    if transfer.other is not self._device:
                        upper = self._tiers[0]
                        self._overwrite(upper, [upper.index.finish_read(key)])
                flow.stored_bytes += moved
                flow.store_times.add(transfer.seconds)
            case "fetch":
                for key, good in zip(transfer.keys, transfer.good, strict=True):
                    if not good:
                        tier.index.drop(key)  # waits for this read
                    self._overwrite(tier, [tier.index.finish_read(key)])
                flow.fetched_bytes += moved
                flow.fetch_times.add(transfer.seconds)
            case "erase":
                pass


class _Nothing:
    """No blocks and no transfers."""

    def read_block(self, block: int, into: Bytes) -> None:
        raise RuntimeError(f"there is no tier for block {block}, {len(into)} bytes")

    def write_block(self, block: int, data: Bytes) -> None:
        raise RuntimeError(f"there is no tier for block {block}, {len(data)} bytes")

    def begin(self, transfer: Transfer) -> None:
        raise RuntimeError(f"there is no tier to {transfer.kind} in")

    def finished(self) -> list[Transfer]:
        return []

    def wait(self, timeout_s: float) -> None:
        """Return at once: no transfer is in flight."""

    def close(self) -> None:
        """Nothing to close."""


def no_tiers() -> Tiers:
    """Tiers without storage: KV that leaves the device is lost."""
    nothing = _Nothing()
    return Tiers((), device=nothing, block_bytes=0, mover=nothing)
