"""Waiting and running turns by priority and arrival, and how many may run. Loop thread only."""

from bisect import insort
from collections.abc import Iterator
from itertools import count

from engine.core.fairness import VirtualCounters, WaitingTurn, in_order, newcomers
from engine.core.slot import Slot
from engine.ids import SessionId, TurnId
from engine.kv.context import Activity


class RunQueue:
    """Every turn that has not ended is in exactly one of `waiting` and `running`.

    Both are in the order of entitlement: by priority, then by arrival. A younger turn may overtake
    a waiting one, which keeps its place. `limit`: how many may run. `background`: the turns that
    yield to all others, and give their owner no place among the others. `counters` orders owners;
    who computes charges it.
    """

    def __init__(self, max_running: int, counters: VirtualCounters) -> None:
        self.limit = RunningLimit(max_running)
        self.waiting: list[Slot] = []
        self.running: list[Slot] = []
        self._by_turn: dict[TurnId, Slot] = {}
        self._by_session: dict[SessionId, Slot] = {}
        self._arrival: dict[TurnId, int] = {}
        self.background: dict[TurnId, Slot] = {}
        self._numbers = count()
        self._counters = counters

    def __len__(self) -> int:
        return len(self._by_turn)

    @property
    def foreground_count(self) -> int:
        """Number of turns that are not in the background."""
        return len(self._by_turn) - len(self.background)

    def in_background(self) -> list[Slot]:
        """The turns in the background, the oldest first."""
        return list(self.background.values())

    def raise_priority(self, slot: Slot) -> None:
        """Move a turn to the foreground, with the priority of its terms."""
        if self.background.pop(slot.turn, None) is None:
            return
        is_running = slot.context.activity is Activity.RUNNING
        slots = self.running if is_running else self.waiting
        slots.remove(slot)
        slot.background = False
        self._insert(slots, slot)
        if slot.started_s is None:
            self._counters.join(slot.context.salt)

    def has_turn_of(self, salt: bytes) -> bool:
        """Whether an owner has a foreground turn. O(turns)."""
        slots = self._by_turn.values()
        return any(slot.context.salt == salt and not slot.background for slot in slots)

    def of_turn(self, turn: TurnId) -> Slot | None:
        """The slot of a turn that has not ended."""
        return self._by_turn.get(turn)

    def of_session(self, session: SessionId) -> Slot | None:
        """The slot of a session's turn that has not ended."""
        return self._by_session.get(session)

    def in_order(self) -> Iterator[Slot]:
        """The waiting turns in the order in which they should run. See `fairness.in_order`."""
        candidates = [
            WaitingTurn(
                slot,
                slot.context.salt,
                slot.priority,
                len(slot.command.ids),
                slot.command.terms.weight,
                slot.started_s is not None,
            )
            for slot in self.waiting
        ]
        return in_order(candidates, self._counters.served, self.newcomers())

    def newcomers(self) -> set[bytes]:
        """Owners that run nothing and whose next turn is admitted first."""
        running = {slot.context.salt for slot in self.running if not slot.background}
        waiting = (slot.context.salt for slot in self.waiting if not slot.background)
        if not running or running.issuperset(waiting):
            return set()
        weights = {
            slot.context.salt: slot.command.terms.weight
            for slot in self._by_turn.values()
            if not slot.background
        }
        return newcomers(weights, running, self._counters.served, self.limit.now)

    @property
    def highest_waiting(self) -> int:
        """The highest priority of a waiting turn; at least one must wait."""
        return self.waiting[0].priority

    def served(self, slot: Slot) -> float:
        """Service that the turn's owner has received, comparable among owners."""
        return self._counters.served(slot.context.salt)

    def enqueue(self, slot: Slot) -> None:
        """Queue a new turn behind all others of its priority."""
        self._by_turn[slot.turn] = slot
        self._by_session[slot.context.session] = slot
        self._arrival[slot.turn] = next(self._numbers)
        if slot.command.background:
            self.background[slot.turn] = slot
        else:  # while it waits it earns no credit
            self._counters.join(slot.context.salt)
        self._insert(self.waiting, slot)
        slot.context.activity = Activity.WAITING

    def admit(self, slot: Slot) -> None:
        """Admit a waiting turn."""
        self.waiting.remove(slot)
        self._insert(self.running, slot)
        self._leave_waiting(slot)
        slot.context.activity = Activity.RUNNING

    def preempt(self, slot: Slot) -> None:
        """Return a running turn to the queue, in its old place."""
        self.running.remove(slot)
        self._insert(self.waiting, slot)
        slot.context.activity = Activity.WAITING

    def _insert(self, slots: list[Slot], slot: Slot) -> None:
        insort(
            slots,
            slot,
            key=lambda other: (-other.priority, self._arrival[other.turn]),
        )

    def _leave_waiting(self, slot: Slot) -> None:
        if slot.started_s is None and not slot.background:  # otherwise it is not counted any more
            self._counters.leave(slot.context.salt)

    def remove(self, slot: Slot) -> None:
        """Remove a turn that has ended."""
        del self._by_turn[slot.turn]
        del self._arrival[slot.turn]
        self.background.pop(slot.turn, None)
        del self._by_session[slot.context.session]
        if slot.context.activity is Activity.RUNNING:
            self.running.remove(slot)
        else:
            self.waiting.remove(slot)
            self._leave_waiting(slot)
        if slot.started_s is not None:  # otherwise it held nothing
            self.limit.note_end()
        if not self._by_turn:
            self._counters.clear()
            self.limit.reset()
        slot.context.activity = Activity.IDLE


class RunningLimit:
    """How many turns may run: `most`, or fewer after a preemption.

    After a preemption the limit is the number of remaining turns. It rises by one whenever as many
    turns as it allows have ended, like a TCP congestion window, so that hardly more turns are
    preempted than end.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most
        self._ended = 0

    def lower(self, running: int) -> None:
        """Lower the limit after a preemption that left this many turns."""
        self.now = max(1, min(self.now, running))
        self._ended = 0

    def note_end(self) -> None:
        """Record that a turn has ended and freed its blocks."""
        self._ended += 1
        if self._ended >= self.now:
            self.now = min(self.most, self.now + 1)
            self._ended = 0

    def reset(self) -> None:
        """Restore the full limit: no turn is left."""
        self.now, self._ended = self.most, 0
