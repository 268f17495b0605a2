"""Executes transfers beside the loop: one thread writes to the tiers, another reads from them.

A turn that waits for its KV therefore never waits behind idle-time writes.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine.kv.tiers.store import Blocks, BlockStore, Label

_log = logging.getLogger(__name__)

MoveKind = Literal["store", "fetch", "erase"]


@dataclass(slots=True, kw_only=True, eq=False)
class Transfer:
    """Blocks between a tier and `other`: the device's, or another tier's on demotion.

    `good` (one per block) and `seconds` are set once it has been executed.
    """

    kind: MoveKind
    tier: str
    store: BlockStore
    slots: Sequence[int]
    labels: Sequence[Label]
    other: Blocks
    blocks: Sequence[int]
    good: list[bool] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def keys(self) -> list[bytes]:
        """Keys of its blocks."""
        return [label.key for label in self.labels]

    def carry_out(self) -> None:
        """Execute the transfer. Every failure is reported by `good`: KV may always be lost."""
        started_s = time.perf_counter()
        try:
            match self.kind:
                case "store":
                    self.good = self.store.write(self.slots, self.labels, self.other, self.blocks)
                case "fetch":
                    self.good = self.store.read(self.slots, self.keys, self.other, self.blocks)
                case "erase":
                    self.store.erase(self.slots)
        except Exception:
            _log.exception("KV transfer failed (%s of %d blocks)", self.kind, len(self.keys))
            self.good = [False] * len(self.keys)
        self.seconds = time.perf_counter() - started_s


class Mover(Protocol):
    """Executes transfers. Those of one direction end in the order in which they began."""

    def begin(self, transfer: Transfer) -> None:
        """Start a transfer; it is executed later."""
        ...

    def finished(self) -> list[Transfer]:
        """Transfers that have ended since the last call."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Sleep until a transfer has ended, or the time is over."""
        ...

    def close(self) -> None:
        """Execute all started transfers, then stop."""
        ...


class ThreadMover:
    """Two threads. Called by the loop's thread only."""

    def __init__(self) -> None:
        self._done: deque[Transfer] = deque()
        self._wake = threading.Event()
        self._out: queue.SimpleQueue[Transfer | None] = queue.SimpleQueue()
        self._in: queue.SimpleQueue[Transfer | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(transfers,), name=name, daemon=True)
            for transfers, name in ((self._out, "kv-out"), (self._in, "kv-in"))
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, transfer: Transfer) -> None:
        """See `Mover`."""
        (self._in if transfer.kind == "fetch" else self._out).put(transfer)

    def finished(self) -> list[Transfer]:
        """See `Mover`."""
        self._wake.clear()
        transfers = []
        while self._done:
            transfers.append(self._done.popleft())
        return transfers

    def wait(self, timeout_s: float) -> None:
        """See `Mover`."""
        self._wake.wait(timeout_s)

    def close(self) -> None:
        """See `Mover`."""
        self._out.put(None)
        self._in.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, transfers: "queue.SimpleQueue[Transfer | None]") -> None:
        while (transfer := transfers.get()) is not None:
            transfer.carry_out()
            self._done.append(transfer)
            self._wake.set()
