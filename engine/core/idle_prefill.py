"""Work done ahead of turns: idle prefill, and prefetch of KV for queued turns. Loop thread only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.core.run_queue import RunQueue
from engine.core.slot import Slot
from engine.ids import SessionId
from engine.kv.context import Activity, Context
from engine.kv.executor import Executor
from engine.kv.step import SequenceStep

STEP_TOKENS = 16
"""Limit of tokens in an idle step. An end of turn and a header are about five."""

_MOST_EXAMINED = 64  # sessions per step: most may have no idle work

QUIET_S = 0.1
"""Pause after the last turn: programs have sent their next turn by then, people have not."""

AHEAD = 4
"""Number of waiting turns whose KV may be prefetched, the oldest first."""

_KEPT_BLOCKS = 2  # left for each running turn, which writes them during the transfer
_SKIPPED_CALLS = 16  # examining pages takes time, and blocks rarely become free in the next step


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyWork:
    """One session's part of an idle step: its `owed` ids, then `drafts` ids of its next turn."""

    context: Context
    owed: int
    drafts: int
    step: SequenceStep


class IdlePrefill:
    """Owns the queue of sessions with idle work. Does nothing when switched off.

    `clock` gives seconds, monotonic.
    """

    def __init__(
        self,
        *,
        config: EngineConfig,
        memory: Executor,
        max_model_len: int,
        clock: Callable[[], float],
    ) -> None:
        self._enabled = config.idle_prefill and config.retain_kv
        self._memory = memory
        self._max_model_len = max_model_len
        self._clock = clock
        self._due: dict[SessionId, None] = {}  # as an ordered set
        self._quiet_at_s = 0.0

    @property
    def rest_s(self) -> float | None:
        """Seconds until `begin` may have work; None: no session is queued."""
        return max(0.0, self._quiet_at_s - self._clock()) if self._due else None

    def expect(self, context: Context) -> None:
        """Queue a session for idle prefill: its turn has ended."""
        if self._enabled:
            self._due[context.session] = None
            self._quiet_at_s = self._clock() + QUIET_S

    def forget(self, session: SessionId) -> None:
        """Remove a closed session."""
        self._due.pop(session, None)

    def begin(self) -> list[EarlyWork]:
        """Return sessions for a step, longest idle first; [] when there is no work now.

        The caller has checked that no turn waits or runs.
        """
        batch: list[EarlyWork] = []
        if self.rest_s:
            return batch
        left = STEP_TOKENS
        for _ in range(min(_MOST_EXAMINED, len(self._due))):
            context = self._memory.contexts[next(iter(self._due))]
            owed, drafts = self._amount(context)
            if owed + drafts > left:
                break
            del self._due[context.session]
            if owed + drafts and self._memory.try_reserve(context, owed):
                step = self._memory.begin_idle(context, drafts)
                batch.append(EarlyWork(context=context, owed=owed, drafts=drafts, step=step))
                left -= owed + drafts
        return batch

    def finish(self, batch: Sequence[EarlyWork]) -> None:
        """Record that the step has run."""
        for work in batch:
            self._memory.note_idle(work.context, work.owed, work.drafts)

    def give_up(self, batch: Sequence[EarlyWork]) -> None:
        """Record that the step ran out of memory: the next turns compute these ids."""
        for work in batch:
            self._memory.drop_idle(work.context, work.owed)

    def fail(self, batch: Sequence[EarlyWork]) -> None:
        """Record that the step has failed: the KV that it read is discarded."""
        for work in batch:
            self._memory.distrust(work.context)

    def _amount(self, context: Context) -> tuple[int, int]:
        """Number of owed ids and of drafts to compute; (0, 0): none for this session.

        The session must have all its former KV, which is not recomputed for a turn that may never
        be submitted. No edit may be due. The tail must be writable, since a copy takes a block.
        """
        table, pool, owed = context.table, self._memory.pool, context.pending
        tail = table.open_tail
        if (
            not context.computed_len
            or table.kept_len < context.computed_len
            or context.stages
            or owed > STEP_TOKENS
            or len(context.ids) > self._max_model_len
            or (tail is not None and not pool.is_writable(tail))
            or table.blocks_needed(owed) > pool.free_count
        ):
            return 0, 0
        room = (table.room - owed) % table.block_size  # in the last block, which may not exist yet
        return owed, min(
            len(context.draft_ids),
            room,
            STEP_TOKENS - owed,
            self._max_model_len - len(context.ids),
        )


class Prefetch:
    """Owns the record of waiting turns.

    `prefetched`: those whose KV was prefetched, and whether their session had no block before.
    `skipped`: those that can't be prefetched now, for so many calls.
    """

    def __init__(self, queue: RunQueue, memory: Executor) -> None:
        self._queue = queue
        self._memory = memory
        self.prefetched: dict[Slot, bool] = {}
        self.skipped: dict[Slot, int] = {}

    def advance(self) -> None:
        """Begin the prefetches that can begin, and abandon those without a waiting turn."""
        if not self._memory.has_tiers:
            return
        for slot in [slot for slot in self.prefetched if self._is_gone(slot)]:
            self._end(slot, was_empty=self.prefetched.pop(slot))
        ahead = self._queue.waiting[:AHEAD]
        self.skipped = {slot: self.skipped[slot] - 1 for slot in ahead if self.skipped.get(slot)}
        for slot in ahead:
            if slot not in self.prefetched and slot not in self.skipped and slot.started_s is None:
                self._begin(slot)

    def _begin(self, slot: Slot) -> None:
        context = slot.context
        was_empty = not context.table.block_count
        keep = _KEPT_BLOCKS * (1 + len(self._queue.running))
        limit = len(context.ids) - slot.command.generate
        if self._memory.prefetch(context, limit, keep):
            self.prefetched[slot] = was_empty
        else:
            self.skipped[slot] = _SKIPPED_CALLS

    def _is_gone(self, slot: Slot) -> bool:
        return self._queue.of_turn(slot.turn) is not slot

    def _end(self, slot: Slot, *, was_empty: bool) -> None:
        context = slot.context
        is_there = self._memory.context(context.session) is context
        if is_there and was_empty and slot.started_s is None and context.activity is Activity.IDLE:
            self._memory.release(context)
