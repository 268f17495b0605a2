"""Acts when blocks or running slots are short. Loop thread only.

The degradation level decides what is done when no idle session has blocks left. The residency
limit decides which queued turns may run within their user's share of blocks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Generic, NamedTuple, TypeVar, assert_never

from engine.config import EngineConfig
from engine.core.slot import Slot
from engine.core.turns import Turns
from engine.counters import Counters
from engine.kv.context import Context
from engine.kv.executor import Executor
from engine.kv.partition import blocks_for

Turn = TypeVar("Turn")


class BlockDemand(NamedTuple, Generic[Turn]):
    """Blocks of one turn's context when the turn has its greatest possible length.

    `most`: the owner's limit; None sets no limit.
    """

    turn: Turn
    owner: bytes
    blocks: int
    most: int | None


def within_limit(
    waiting: Iterable[BlockDemand[Turn]], running: Iterable[BlockDemand[Turn]]
) -> list[Turn]:
    """The waiting turns that may run beside the running ones, in their order.

    Worst cases are added up, so that this limit never stops an admitted turn; idle contexts of the
    user are evicted for it. Later turns of the same user wait behind a turn that must wait
    (otherwise it could starve); other users' turns overtake it.
    """
    held: Counter[bytes] = Counter()
    for demand in running:
        held[demand.owner] += demand.blocks
    stopped: set[bytes] = set()
    admitted = []
    for demand in waiting:
        owner = demand.owner
        over = demand.most is not None and held[owner] + demand.blocks > demand.most
        if owner in stopped or over:
            stopped.add(owner)
            continue
        held[owner] += demand.blocks
        admitted.append(demand.turn)
    return admitted


class RunningTurn(NamedTuple):
    """A running turn.

    `preemption_count`: how often it was preempted. `wanted`: tokens that it may still sample,
    `room`: those of them for which it needs no other block. A turn that samples none has 0 of both.
    """

    priority: int
    preemption_count: int
    wanted: int
    room: int


@dataclass(frozen=True, slots=True)
class Preempt:
    """Preempt that turn: it frees its blocks and returns to its place in the queue."""

    index: int


@dataclass(frozen=True, slots=True)
class Shorten:
    """Limit that turn's reply to this many more tokens, for which it has blocks."""

    index: int
    tokens: int


@dataclass(frozen=True, slots=True)
class End:
    """End that turn now, with its reply so far."""

    index: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Leave the needy turn out of this step: other turns are about to end."""


DegradationStep = Preempt | Shorten | End | Wait


def next_degradation(
    streams: Sequence[RunningTurn], needy: int, max_preemptions: int
) -> DegradationStep:
    """Choose the step for turn number `needy`, which lacks blocks.

    `streams` are in order of entitlement, the most entitled first.

    The youngest turn behind it below the preemption limit is preempted. If all have reached it, the
    last of them is shortened if its priority is lower: to the tokens that it has blocks for, or
    ended if there are none. At equal priority the needy turn is preempted instead, if it may be. No
    turn is shortened for the last one: it waits until those before it have ended.
    """
    last = len(streams) - 1
    if last == 0:
        return Preempt(0)  # alone it fits: after a restart it shares its blocks with no other turn
    for index in range(last, needy, -1):
        if streams[index].preemption_count < max_preemptions:
            return Preempt(index)
    one, youngest = streams[needy], streams[last]
    if one.preemption_count < max_preemptions and one.priority <= youngest.priority:
        return Preempt(needy)
    if last == needy or youngest.room >= youngest.wanted:
        return Wait()
    return Shorten(last, youngest.room) if youngest.room else End(last)


class AdmissionCandidate(NamedTuple):
    """A waiting turn. `blocks`: its worst case; `spent`: it has reached the preemption limit."""

    blocks: int
    spent: bool


def admissible_count(
    waiting: Sequence[AdmissionCandidate],
    *,
    running: int,
    running_blocks: int,
    limit: int,
    total: int,
) -> int:
    """Number of waiting turns, in their order, that may run beside the running ones.

    Up to `limit` run, and beyond it as many as are certain to finish: all worst cases together fit
    the pool. A turn at the preemption limit starts only in that case, or alone; those behind it
    wait.
    """
    blocks = running_blocks
    for count, one in enumerate(waiting):
        blocks += one.blocks
        sure = blocks <= total or running + count == 0
        if not sure and (one.spent or running + count >= limit):
            return count
    return len(waiting)


class Pressure:
    """Owns no state: preemptions are counted in the slots, the running limit is the queue's."""

    def __init__(
        self, *, config: EngineConfig, memory: Executor, turns: Turns, counters: Counters
    ) -> None:
        self._config = config
        self._memory = memory
        self._pool = memory.pool
        self._usage = memory.usage
        self._turns = turns
        self._queue = turns.queue
        self._limit = turns.queue.limit
        self._counters = counters

    # --- admission ------------------------------------------------------------------------------

    def candidates(self) -> tuple[list[Slot], int]:
        """Waiting turns that may start now, in order, and how many turns may run with them."""
        running, limit = self._queue.running, self._limit
        if len(running) >= limit.most:
            return [], limit.most
        waiting = self._admissible(limit.most)
        if limit.now >= limit.most and not any(map(self._is_spent, waiting)):
            return waiting, limit.most
        free = limit.most - len(running)
        count = admissible_count(
            [
                AdmissionCandidate(self._worst_case(slot), self._is_spent(slot))
                for slot in waiting[:free]
            ],
            running=len(running),
            running_blocks=sum(map(self._worst_case, running)),
            limit=limit.now,
            total=self._pool.total,
        )
        for slot in waiting[count:free]:
            self._turns.degrade(slot, "limit_running")
        return waiting[:count], len(running) + count

    def _admissible(self, most: int) -> list[Slot]:
        """Waiting turns that no limit of their user blocks, the first in order."""
        waiting = self._queue.in_order()
        if self._queue.background:
            spare = self._turns.has_spare_blocks
            waiting = (slot for slot in waiting if not slot.background or spare(slot))
        if self._usage.has_limits:
            demands = map(self._demand, waiting)
            waiting = iter(within_limit(demands, map(self._demand, self._foreground())))
        return list(islice(waiting, most))

    def _foreground(self) -> Iterator[Slot]:
        return (slot for slot in self._queue.running if not slot.background)

    def _demand(self, slot: Slot) -> BlockDemand[Slot]:
        owner = self._usage.of(slot.context.session).owner
        return BlockDemand(slot, owner, self._worst_case(slot), self._usage.max_blocks(owner))

    def _is_spent(self, slot: Slot) -> bool:
        return slot.preemption_count >= self._config.max_preemptions

    def _worst_case(self, slot: Slot) -> int:
        return slot.worst_case_blocks

    # --- blocks for running turns ----------------------------------------------------------------

    def make_room(self, slot: Slot, tokens: int) -> bool:
        """Get blocks for a running turn from less entitled ones, after `try_reserve` has failed.

        The first turn always gets them in the end, since it fits alone; so some turn always ends.
        False when the turn was preempted itself, or must wait for blocks that become available
        soon.
        """
        # no turn is preempted if blocks are about to become available
        while not self._memory.transfers_press and self._step_down(slot):
            if self._memory.try_reserve(slot.context, tokens):
                return True
        return False

    def _step_down(self, needy: Slot) -> bool:
        """Take the next degradation step; return whether to try again to reserve blocks."""
        running = self._queue.running
        step = next_degradation(
            [self._stream(slot) for slot in running],
            running.index(needy),
            self._config.max_preemptions,
        )
        match step:
            case Preempt(index=index):
                victim = running[index]
                self._preempt(victim)
                if not victim.background:
                    self._limit.lower(len(running))
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
                assert_never(step)

    def _stream(self, slot: Slot) -> RunningTurn:
        wanted = slot.tokens_left if slot.command.generate else 0
        return RunningTurn(
            slot.priority,
            slot.preemption_count,
            wanted,
            min(self._room(slot.context), wanted),
        )

    def _room(self, context: Context) -> int:
        """Tokens that may be sampled with the present blocks: the last needs no slot."""
        tail = context.table.open_tail
        if context.pending != 1 or context.stages:
            return 0  # it would recompute its whole prompt for a few tokens
        if tail is not None and not self._pool.is_writable(tail):
            return 0
        return context.table.room

    def _preempt(self, slot: Slot) -> None:
        """Free a running turn's blocks; it keeps its place and its output.

        KV that no tier keeps is recomputed when it resumes, that of sampled ids included. The
        sampler draws by output index, so the reply does not change.
        """
        if slot.background:
            self._turns.pause_background(slot)
            return
        self._queue.preempt(slot)
        self._memory.swap_out(slot.context)
        slot.preemption_count += 1
        self._counters.preemptions += 1
        self._counters.swapped_preemptions += self._memory.has_tiers
        self._turns.degrade(slot, "preempt")

    # --- priority and fair shares ----------------------------------------------------------------

    def share(self) -> None:
        """Preempt running turns for waiting ones that are entitled to their place.

        At least one turn must wait.
        """
        highest = self._queue.highest_waiting
        if any(self._yields(slot, highest) for slot in self._queue.running):
            self._yield_to_higher()
        self._share_among_owners()

    def _yield_to_higher(self) -> None:
        """Pause turns for waiting ones of a strictly higher priority: for slots and for blocks.

        The least entitled turn goes first, at most `max_preemptions` times each. It keeps its KV
        until those blocks are needed. A turn that finds too little holds up those behind it. All
        sessions are examined, but only in a step in which some turn can be paused.
        """
        running, limit = self._queue.running, self._limit
        free, obtainable = limit.now - len(running), self._memory.obtainable()
        for newcomer in self._admissible(limit.most):
            wanted, chosen = self._blocks_wanted(newcomer), []
            for slot in reversed(running):
                if free > 0 and obtainable >= wanted:
                    break
                if self._yields(slot, newcomer.priority):
                    chosen.append(slot)
                    free, obtainable = free + 1, obtainable + slot.context.table.block_count
            if free <= 0 or obtainable < wanted:
                return  # nothing is paused when even that would be too little
            for slot in chosen:
                self._pause(slot)
            free, obtainable = free - 1, obtainable - wanted

    def _yields(self, slot: Slot, priority: int) -> bool:
        return slot.priority < priority and not self._is_spent(slot)

    def _pause(self, slot: Slot) -> None:
        """Return a running turn to the queue for a higher priority; it keeps its KV."""
        if slot.background:
            self._turns.pause_background(slot)
            return
        self._queue.preempt(slot)
        slot.preemption_count += 1
        self._counters.pauses += 1
        self._turns.degrade(slot, "preempt", "priority")

    def _share_among_owners(self) -> None:
        """Preempt turns of owners that run several, for the least-served owners that run none.

        A turn that loses its running slot returns to the queue and keeps its blocks. Blocks are
        freed up to the newcomers' equal shares of the pool.
        """
        running, limit = self._queue.running, self._limit
        # In most steps no owner runs several turns, or no waiting turn is entitled to one of their
        # slots. So this is checked before all waiting turns are sorted.
        if not self._victims(self._queue.highest_waiting):
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
        """Turns of this priority or lower that may be preempted, the least entitled first.

        An owner keeps at least one running turn. Background turns have left their place before.
        """
        running = list(self._foreground())
        left = Counter(slot.context.salt for slot in running)
        victims = []
        for slot in reversed(running):
            if slot.priority <= priority and left[slot.context.salt] > 1:
                left[slot.context.salt] -= 1
                victims.append(slot)
        return victims

    def _share_blocks(self, newcomers: Sequence[Slot]) -> None:
        pool, queue = self._pool, self._queue
        owners = len({slot.context.salt for slot in self._foreground()}) + len(newcomers)
        wanted = [self._blocks_wanted(slot) for slot in newcomers]
        offered = [slot for slot in self._victims(_least(newcomers)) if not self._is_spent(slot)]
        if not offered or max(wanted) > pool.total // owners:
            return
        obtainable = self._memory.obtainable()  # which examines every session
        victims = []
        for slot in offered:
            if obtainable < sum(wanted):
                obtainable += slot.context.table.block_count
                victims.append(slot)
        if obtainable < sum(wanted):
            return  # nothing is preempted when even that would free too few blocks
        for slot in victims:
            self._preempt(slot)
            self._limit.lower(len(queue.running) + len(newcomers))

    def _blocks_wanted(self, slot: Slot) -> int:
        context, limit = slot.context, len(slot.context.ids) - slot.command.generate
        tokens = self._memory.outstanding(context, limit)
        return blocks_for(tokens, self._config.block_size) + 1  # a tail may have to be copied


def _least(slots: Sequence[Slot]) -> int:
    return min(slot.priority for slot in slots)
