"""Executes transfers with copy streams of the device, beside the model. Loop thread only.

Between the device and the host tier a transfer is some copies in a stream and an event behind them;
it has ended when the event has completed. Transfers to and from a disk are staged in pinned memory,
and threads move them between it and the disk: they never touch the device.

Two orderings make this correct. A copy stream waits for all earlier work of the model's stream,
which may still write what is copied out, or read what is overwritten. And the blocks of a transfer
are not used, nor its slots found, before the host has seen the event (see `Tiers`): so the model's
stream never has to wait for a copy.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from engine.device.protocol import Device, DeviceEvent, Stream
from engine.kv.tiers.disk import RUN
from engine.kv.tiers.host import HostStore
from engine.kv.tiers.mover import MoveKind, Mover, Transfer
from engine.kv.tiers.store import Blocks, Bytes

if TYPE_CHECKING:
    from torch import Tensor

Copy: TypeAlias = "tuple[Tensor, Tensor]"
"""Target and source."""

_STAGES = 2  # per direction: one is copied while a thread uses the other
_POLL_S = 0.0002  # polling interval of events
_THREAD_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBlocks:
    """A device's pool: `blocks` as the tiers' interface, and its bytes [blocks, block_bytes]."""

    device: Device
    blocks: Blocks
    rows: "Tensor"


class _Stage:
    """Pinned memory for the blocks of one transfer. Implements `Blocks`."""

    def __init__(self, rows: "Tensor") -> None:
        self.rows = rows
        self._bytes: Bytes = rows.numpy()

    def read_block(self, block: int, into: Bytes) -> None:
        """See `Blocks`."""
        into[:] = self._bytes[block]

    def write_block(self, block: int, data: Bytes) -> None:
        """See `Blocks`."""
        self._bytes[block] = data


@dataclass(slots=True, eq=False)
class _Copies:
    """Copies of a transfer in a stream; `then` runs when its event has completed."""

    event: DeviceEvent
    then: Callable[[], None]


@dataclass(slots=True)
class _Direction:
    """One direction: its stream, its copies, free stages, and transfers that wait for one."""

    stream: Stream
    stages: list[_Stage]
    copies: deque[_Copies] = field(default_factory=deque)
    waiting: deque[Transfer] = field(default_factory=deque)
    last_s: float = 0.0  # when its last transfer ended


class StreamMover:
    """Implements `Mover`. `threads` moves between pinned memory and the disk.

    `host` is the host tier, if there is one, in pinned memory. Transfers of one direction between
    the device and one tier end in their order. `pause` sleeps for some seconds.
    """

    def __init__(
        self,
        pool: DeviceBlocks,
        *,
        host: HostStore | None,
        threads: Mover,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        import torch

        self._pool = pool
        self._compute = pool.device.compute
        self._host = host
        self._slots = None if host is None else torch.from_numpy(host.slots)
        self._threads = threads
        self._clock = clock
        self._pause = pause
        self._block_bytes = pool.rows.shape[1]
        self._zeros = pool.device.zeros(self._block_bytes)
        self._out, self._in = self._open_direction(), self._open_direction()
        self._done: list[Transfer] = []
        self._begun_s: dict[Transfer, float] = {}
        self._staged: dict[
            Transfer, tuple[Transfer, _Stage]
        ] = {}  # by the transfer that a thread executes
        self._in_threads = 0

    def begin(self, transfer: Transfer) -> None:
        """See `Mover`."""
        self._begun_s[transfer] = self._clock()
        is_host = transfer.store is self._host
        if transfer.kind == "erase" and is_host:
            self._put(self._out, self._erasures(transfer), lambda: self._end(transfer, self._out))
        elif transfer.other is not self._pool.blocks or transfer.kind == "erase":
            self._in_threads += 1
            self._threads.begin(transfer)
        elif is_host:
            self._copy_to_or_from_host(transfer)
        else:
            direction = self._direction_of(transfer)
            direction.waiting.append(transfer)
            self._feed(direction)

    def finished(self) -> list[Transfer]:
        """See `Mover`."""
        self._poll()
        done, self._done = self._done, []
        return done

    def wait(self, timeout_s: float) -> None:
        """See `Mover`."""
        until_s = self._clock() + timeout_s
        while True:
            self._poll()
            left_s = until_s - self._clock()
            if self._done or left_s <= 0:
                return
            if self._out.copies or self._in.copies:
                self._pause(min(left_s, _POLL_S))
            else:
                self._threads.wait(left_s)

    def close(self) -> None:
        """See `Mover`."""
        while self._begun_s:
            for direction in (self._out, self._in):
                for copies in direction.copies:
                    copies.event.synchronize()
            if self._in_threads:
                self._threads.wait(_THREAD_S)
            self._poll()
        self._threads.close()

    # --- between the device and the host ---------------------------------------------------------

    def _copy_to_or_from_host(self, transfer: Transfer) -> None:
        direction = self._direction_of(transfer)
        slots = self._slots
        if slots is None:
            raise RuntimeError("the transfer is of an unknown host tier")

        def end() -> None:
            transfer.good = [True] * len(transfer.blocks)
            self._end(transfer, direction)

        self._put(
            direction, self._copies(transfer.kind, transfer.blocks, slots, transfer.slots), end
        )

    def _copies(
        self, kind: MoveKind, blocks: Sequence[int], host: "Tensor", places: Sequence[int]
    ) -> Iterator[Copy]:
        """Copies between blocks of the pool and slots of pinned memory."""
        for block, place, count in runs(blocks, places):
            on_device = self._pool.rows[block : block + count]
            on_host = host[place : place + count]
            yield (on_host, on_device) if kind == "store" else (on_device, on_host)

    def _erasures(self, transfer: Transfer) -> Iterator[Copy]:
        # zeros are copied in the same stream, so that they precede the next write to the slot
        for slot in transfer.slots:
            if self._slots is not None:
                yield self._slots[slot], self._zeros

    def _put(self, direction: _Direction, copies: Iterator[Copy], then: Callable[[], None]) -> None:
        """Order copies behind all earlier work of the model's stream."""
        direction.stream.wait(self._compute.record())
        for target, source in copies:
            direction.stream.copy(target, source)
        direction.copies.append(_Copies(direction.stream.record(), then))

    # --- through pinned memory -------------------------------------------------------------------

    def _feed(self, direction: _Direction) -> None:
        """Assign free stages to waiting transfers."""
        while direction.waiting and direction.stages:
            transfer, stage = direction.waiting.popleft(), direction.stages.pop()
            if transfer.kind == "fetch":
                self._pass_to_thread(transfer, stage)
                continue
            places = range(len(transfer.blocks))
            copies = self._copies(transfer.kind, transfer.blocks, stage.rows, places)
            self._put(direction, copies, partial(self._pass_to_thread, transfer, stage))

    def _pass_to_thread(self, transfer: Transfer, stage: _Stage) -> None:
        inner = Transfer(
            kind=transfer.kind,
            tier=transfer.tier,
            store=transfer.store,
            slots=transfer.slots,
            labels=transfer.labels,
            other=stage,
            blocks=range(len(transfer.blocks)),
        )
        self._staged[inner] = transfer, stage
        self._in_threads += 1
        self._threads.begin(inner)

    def _finish_in_thread(self, ended: Transfer) -> None:
        self._in_threads -= 1
        if ended not in self._staged:
            del self._begun_s[ended]
            self._done.append(ended)
            return
        transfer, stage = self._staged.pop(ended)
        direction = self._direction_of(transfer)
        transfer.good = ended.good

        def end() -> None:
            direction.stages.append(stage)
            self._end(transfer, direction)
            self._feed(direction)

        if transfer.kind == "store":
            end()
            return
        good = [place for place, is_good in enumerate(transfer.good) if is_good]
        blocks = [transfer.blocks[place] for place in good]
        self._put(direction, self._copies(transfer.kind, blocks, stage.rows, good), end)

    # --- completion ------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Record finished transfers, without waiting."""
        for transfer in self._threads.finished() if self._in_threads else ():
            self._finish_in_thread(transfer)
        for direction in (self._out, self._in):
            while direction.copies and direction.copies[0].event.query():
                direction.copies.popleft().then()

    def _end(self, transfer: Transfer, direction: _Direction) -> None:
        now_s = self._clock()
        transfer.seconds = now_s - max(self._begun_s.pop(transfer), direction.last_s)
        direction.last_s = now_s
        self._done.append(transfer)

    def _direction_of(self, transfer: Transfer) -> _Direction:
        return self._in if transfer.kind == "fetch" else self._out

    def _open_direction(self) -> _Direction:
        device = self._pool.device
        size = RUN * self._block_bytes
        stages = [device.pinned(size).view(RUN, self._block_bytes) for _ in range(_STAGES)]
        return _Direction(device.stream(), [_Stage(rows) for rows in stages])


def runs(blocks: Sequence[int], places: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (block, place, count) of pairs that are neighbours on both sides: one copy each."""
    begun: tuple[int, int] | None = None
    count = 0
    for block, place in sorted(zip(blocks, places, strict=True)):
        if begun is not None and (block, place) == (begun[0] + count, begun[1] + count):
            count += 1
            continue
        if begun is not None:
            yield *begun, count
        begun, count = (block, place), 1
    if begun is not None:
        yield *begun, count
