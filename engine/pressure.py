"""Goes down the ladder when blocks or seats are short. Loop thread only.

What it does is decided by `engine.ladder`, and who is entitled to what by `engine.run_queue`.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import assert_never

from engine.capacity import blocks_for
from engine.config import EngineConfig
from engine.context import Activity, Context
from engine.counters import Counters
from engine.executor import Executor
from engine.ladder import Candidate, End, Preempt, Shorten, Stream, Wait, next_rung, seats
from engine.residency import Demand, within_limit
from engine.slot import Slot
from engine.turns import Turns


class Pressure:
    """Owns no state: what a turn has given up is in its slot, the running limit in the queue."""

    def __init__(
        self, *, config: EngineConfig, memory: Executor, turns: Turns, counters: Counters
    ) -> None:
        self._config = config
        self._memory = memory
        self._turns = turns
        self._queue = turns.queue
        self._counters = counters

    # --- who may begin -------------------------------------------------------------------------

    def candidates(self) -> tuple[list[Slot], int]:
        """Waiting turns that may begin now, in order, and how many turns may run then."""
        running, limit = self._queue.running, self._queue.limit
        if len(running) >= limit.most:
            return [], limit.most
        waiting = self._admissible(limit.most)
        if limit.now >= limit.most and not any(map(self._is_spent, waiting)):
            return waiting, limit.most
        free = limit.most - len(running)
        count = seats(
            [Candidate(self._worst_case(slot), self._is_spent(slot)) for slot in waiting[:free]],
            running=len(running),
            running_blocks=sum(map(self._worst_case, running)),
            limit=limit.now,
            total=self._memory.pool.total,
        )
        for slot in waiting[count:free]:
            self._turns.degrade(slot, "limit_running")
        return waiting[:count], len(running) + count

    def _admissible(self, most: int) -> list[Slot]:
        """Waiting turns that no limit of their user's keeps from running, the first in order."""
        waiting = self._queue.in_order()
        if self._queue.foreground_count and self._queue.background:
            waiting = (slot for slot in waiting if not self._queue.is_background(slot))
        if self._memory.eviction.usage.has_limits:
            demands = map(self._demand, waiting)
            waiting = iter(within_limit(demands, map(self._demand, self._queue.running)))
        return list(islice(waiting, most))

    def _demand(self, slot: Slot) -> Demand[Slot]:
        usage = self._memory.eviction.usage
        owner = usage.of(slot.context.session).owner
        return Demand(slot, owner, self._worst_case(slot), usage.max_blocks(owner))

    def _is_spent(self, slot: Slot) -> bool:
        return slot.given_way >= self._config.max_preemptions

    def _worst_case(self, slot: Slot) -> int:
        return slot.worst_case_blocks

    # --- blocks for those that run -------------------------------------------------------------

    def make_room(self, slot: Slot, tokens: int) -> bool:
        """Get blocks for a running turn, from less entitled ones if need be.

        The first always gets them in the end, for alone it fits; so some turn always ends. False
        when the turn gave way itself or is left out of this step: blocks will be available soon.
        """
        if slot.context.activity is not Activity.RUNNING:
            return False
        while not self._memory.try_reserve(slot.context, tokens):
            # nobody gives way for want of blocks that come in a moment
            if self._memory.movement.is_pressing or not self._step_down(slot):
                return False
        return True

    def _step_down(self, needy: Slot) -> bool:
        """Take the next rung; whether to look for blocks again."""
        running = self._queue.running
        rung = next_rung(
            [self._stream(slot) for slot in running],
            running.index(needy),
            self._config.max_preemptions,
        )
        match rung:
            case Preempt(index=index):
                victim = running[index]
                self._preempt(victim)
                self._queue.limit.lower(len(running))
                return victim is not needy
            case Shorten(index=index, tokens=tokens):
                self._turns.shorten(running[index], tokens)
                return False
            case End(index=index):
                self._turns.end_for_memory(running[index])
                return True
            case Wait():
                return False
            case _:
                assert_never(rung)

    def _stream(self, slot: Slot) -> Stream:
        wanted = slot.tokens_left if slot.command.generate else 0
        return Stream(
            slot.command.terms.priority,
            slot.given_way,
            wanted,
            min(self._room(slot.context), wanted),
        )

    def _room(self, context: Context) -> int:
        """Tokens that may be drawn on the blocks that are there: the last needs no slot."""
        tail = context.table.open_tail
        if context.pending != 1 or context.stages:
            return 0  # it would compute its whole prompt again for a few tokens
        if tail is not None and not self._memory.pool.is_writable(tail):
            return 0
        return context.table.room

    def _preempt(self, slot: Slot) -> None:
        """Take a running turn's blocks; it keeps its place and what it has said.

        KV that no tier keeps is computed again when it returns, that of sampled ids included. The
        sampler draws by output index, so nothing changes for the reader.
        """
        self._queue.preempt(slot)
        self._memory.swap_out(slot.context)
        slot.given_way += 1
        self._counters.preemptions += 1
        self._counters.swapped_preemptions += len(self._memory.movement.tiers) > 0
        self._turns.degrade(slot, "preempt")

    # --- shares --------------------------------------------------------------------------------

    def share(self) -> None:
        """Let those in who run nothing and had least, at the cost of who runs several turns.

        A seat is given up by waiting again, with all blocks in place. Blocks are given up as far as
        the newcomers' equal shares of the pool go.
        """
        running, limit = self._queue.running, self._queue.limit
        if len({slot.context.salt for slot in running}) == len(running):
            return  # most steps: nobody runs several turns, so nobody would lose one
        newcomers = self._newcomers()
        if not newcomers:
            return
        excess = len(running) + len(newcomers) - limit.now
        for victim in self._victims(newcomers)[: max(0, excess)]:
            self._queue.preempt(victim)
            self._counters.pauses += 1
        self._share_blocks(newcomers)

    def _newcomers(self) -> list[Slot]:
        """The first turns of those who come before all else, as far as nobody else is between."""
        owners = self._queue.newcomers()

        def is_first(slot: Slot) -> bool:
            is_new = slot.context.salt in owners
            owners.discard(slot.context.salt)
            return is_new

        return list(takewhile(is_first, self._admissible(len(owners)))) if owners else []

    def _victims(self, newcomers: Sequence[Slot]) -> list[Slot]:
        """Who would give way for them, in order: the least entitled, but the last of no owner."""
        running = self._queue.running
        left = Counter(slot.context.salt for slot in running)
        least = min(slot.command.terms.priority for slot in newcomers)
        victims = []
        for slot in reversed(running):
            if slot.command.terms.priority <= least and left[slot.context.salt] > 1:
                left[slot.context.salt] -= 1
                victims.append(slot)
        return victims

    def _share_blocks(self, newcomers: Sequence[Slot]) -> None:
        pool, queue = self._memory.pool, self._queue
        owners = len({slot.context.salt for slot in queue.running}) + len(newcomers)
        wanted = [self._blocks_wanted(slot) for slot in newcomers]
        offered = [slot for slot in self._victims(newcomers) if not self._is_spent(slot)]
        if not offered or max(wanted) > pool.total // owners:
            return
        obtainable = self._memory.eviction.obtainable  # which looks at every session
        victims = []
        for slot in offered:
            if obtainable < sum(wanted):
                obtainable += slot.context.table.block_count
                victims.append(slot)
        if obtainable < sum(wanted):
            return  # nobody loses anything for what can't be had
        for slot in victims:
            self._preempt(slot)
            queue.limit.lower(len(queue.running) + len(newcomers))

    def _blocks_wanted(self, slot: Slot) -> int:
        context, limit = slot.context, len(slot.context.ids) - slot.command.generate
        tokens = self._memory.outstanding(context, limit)
        return blocks_for(tokens, self._config.block_size) + 1  # a tail may have to be copied
