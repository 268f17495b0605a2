"""Applies the degradation steps when blocks or running slots are short. Loop thread only.

`engine.ladder` decides on the step, `engine.run_queue` on the turns' entitlement.
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
    """Owns no state: a turn's losses are in its slot, the running limit in the queue."""

    def __init__(
        self, *, config: EngineConfig, memory: Executor, turns: Turns, counters: Counters
    ) -> None:
        self._config = config
        self._memory = memory
        self._turns = turns
        self._queue = turns.queue
        self._counters = counters

    # --- admission ------------------------------------------------------------------------------

    def candidates(self) -> tuple[list[Slot], int]:
        """Waiting turns that may start now, in order, and how many turns may run then."""
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
        """Waiting turns that no limit of their user blocks, the first in order."""
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

    # --- blocks for running turns ----------------------------------------------------------------

    def make_room(self, slot: Slot, tokens: int) -> bool:
        """Get blocks for a running turn, from less entitled ones if needed.

        The first turn always gets them in the end, since it fits alone; so some turn always ends.
        False when the turn was preempted itself or is left out of this step: blocks become
        available soon.
        """
        if slot.context.activity is not Activity.RUNNING:
            return False
        while not self._memory.try_reserve(slot.context, tokens):
            # no turn is preempted if blocks become available shortly
            if self._memory.movement.is_pressing or not self._step_down(slot):
                return False
        return True

    def _step_down(self, needy: Slot) -> bool:
        """Take the next degradation step; return whether to look for blocks again."""
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
        """Tokens that may be sampled with the present blocks: the last needs no slot."""
        tail = context.table.open_tail
        if context.pending != 1 or context.stages:
            return 0  # it would recompute its whole prompt for a few tokens
        if tail is not None and not self._memory.pool.is_writable(tail):
            return 0
        return context.table.room

    def _preempt(self, slot: Slot) -> None:
        """Free a running turn's blocks; it keeps its place and its output.

        KV that no tier keeps is recomputed when it resumes, that of sampled ids included. The
        sampler draws by output index, so the reply does not change.
        """
        self._queue.preempt(slot)
        self._memory.swap_out(slot.context)
        slot.given_way += 1
        self._counters.preemptions += 1
        self._counters.swapped_preemptions += len(self._memory.movement.tiers) > 0
        self._turns.degrade(slot, "preempt")

    # --- fair shares -----------------------------------------------------------------------------

    def share(self) -> None:
        """Admit the least-served owners that run nothing, at the cost of owners of several turns.

        A turn gives up its running slot by waiting again, with all blocks in place. Blocks are
        freed up to the newcomers' equal shares of the pool.
        """
        running, limit = self._queue.running, self._queue.limit
        # In most steps no owner runs several turns, or no waiting turn is entitled to one of their
        # slots. So this is checked before all waiting turns are sorted.
        if not self._queue.waiting or not self._victims(self._queue.highest_waiting):
            return
        newcomers = self._newcomers()
        if not newcomers:
            return
        excess = len(running) + len(newcomers) - limit.now
        for victim in self._victims(_least(newcomers))[: max(0, excess)]:
            self._queue.preempt(victim)
            self._counters.pauses += 1
        self._share_blocks(newcomers)

    def _newcomers(self) -> list[Slot]:
        """First turns of the newcomers, up to the first turn that is not a newcomer's."""
        owners = self._queue.newcomers()

        def is_first(slot: Slot) -> bool:
            is_new = slot.context.salt in owners
            owners.discard(slot.context.salt)
            return is_new

        return list(takewhile(is_first, self._admissible(len(owners)))) if owners else []

    def _victims(self, priority: int) -> list[Slot]:
        """Turns of this priority or lower that may be preempted.

        In order: the least entitled first, but never an owner's last one.
        """
        running = self._queue.running
        left = Counter(slot.context.salt for slot in running)
        victims = []
        for slot in reversed(running):
            if slot.command.terms.priority <= priority and left[slot.context.salt] > 1:
                left[slot.context.salt] -= 1
                victims.append(slot)
        return victims

    def _share_blocks(self, newcomers: Sequence[Slot]) -> None:
        pool, queue = self._memory.pool, self._queue
        owners = len({slot.context.salt for slot in queue.running}) + len(newcomers)
        wanted = [self._blocks_wanted(slot) for slot in newcomers]
        offered = [slot for slot in self._victims(_least(newcomers)) if not self._is_spent(slot)]
        if not offered or max(wanted) > pool.total // owners:
            return
        obtainable = self._memory.eviction.obtainable  # which examines every session
        victims = []
        for slot in offered:
            if obtainable < sum(wanted):
                obtainable += slot.context.table.block_count
                victims.append(slot)
        if obtainable < sum(wanted):
            return  # nothing is preempted for blocks that can't be had
        for slot in victims:
            self._preempt(slot)
            queue.limit.lower(len(queue.running) + len(newcomers))

    def _blocks_wanted(self, slot: Slot) -> int:
        context, limit = slot.context, len(slot.context.ids) - slot.command.generate
        tokens = self._memory.outstanding(context, limit)
        return blocks_for(tokens, self._config.block_size) + 1  # a tail may have to be copied


def _least(slots: Sequence[Slot]) -> int:
    return min(slot.command.terms.priority for slot in slots)
