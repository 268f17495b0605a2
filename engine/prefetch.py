"""Prefetch: restores KV of turns that wait for a running slot. Loop thread only.

It uses only unreferenced blocks that are empty or have a copy in a tier, and leaves enough of them
for running turns: no KV is evicted for KV that may not be needed for long. Restored KV may be
evicted like that of any waiting turn, and is then not prefetched again. A turn that leaves the
queue without having run leaves its session's KV where it was.
"""

from engine.context import Activity
from engine.executor import Executor
from engine.run_queue import RunQueue
from engine.slot import Slot

AHEAD = 4
"""Number of waiting turns examined, the oldest first: others wait for long."""

_KEPT_BLOCKS = 2  # for each running turn: blocks that it writes meanwhile
_REST_LOOKS = 16  # examining pages costs time; blocks rarely become free from one step to the next


class Prefetch:
    """Owns the record of waiting turns whose KV was prefetched."""

    def __init__(self, queue: RunQueue, memory: Executor) -> None:
        self._queue = queue
        self._memory = memory
        self._had: dict[Slot, bool] = {}  # whether its session had no KV on the device before
        self._rests: dict[Slot, int] = {}  # skipped until this look, since nothing could begin

    def look(self) -> None:
        """Begin the prefetches that can begin, and abandon those without a waiting turn."""
        if not self._memory.movement.tiers:
            return
        for slot in [slot for slot in self._had if self._has_left(slot)]:
            self._leave(slot, was_below=self._had.pop(slot))
        ahead = self._queue.waiting[:AHEAD]
        self._rests = {slot: self._rests[slot] - 1 for slot in ahead if self._rests.get(slot)}
        for slot in ahead:
            if slot not in self._had and slot not in self._rests and slot.started_s is None:
                self._begin(slot)

    def _begin(self, slot: Slot) -> None:
        context = slot.context
        was_below = not context.table.block_count
        keep = _KEPT_BLOCKS * (1 + len(self._queue.running))
        limit = len(context.ids) - slot.command.generate
        if self._memory.movement.prefetch(context, limit, keep):
            self._had[slot] = was_below
        else:
            self._rests[slot] = _REST_LOOKS

    def _has_left(self, slot: Slot) -> bool:
        return self._queue.of_turn(slot.turn) is not slot

    def _leave(self, slot: Slot, *, was_below: bool) -> None:
        context = slot.context
        is_there = self._memory.contexts.get(context.session) is context
        if is_there and was_below and slot.started_s is None and context.activity is Activity.IDLE:
            self._memory.release(context)
