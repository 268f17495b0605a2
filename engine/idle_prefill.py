"""Idle prefill: computes likely ids of next turns while none waits or runs. Loop thread only.

After a turn its session owes ids that have no KV yet (the end of the turn), and the next turn most
likely begins with the chat template's header (`SubmitTurn.draft_ids`). Both are prefilled while the
engine is idle, so that the next turn computes its own text only. The owed ids belong to the session
and may be hashed. The others are drafts, invisible until a turn begins with them.

Idle prefill never delays other work: a step has few rows, so that a turn that arrives during it
waits milliseconds, and a client that answers at once finds none started. Owed ids take free blocks
only, drafts take no blocks but the room behind the owed ids. Idle work is not added to other turns'
steps: on a CPU every row of a step costs time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.context import Context
from engine.executor import Executor
from engine.ids import SessionId
from engine.step import SequenceStep

STEP_TOKENS = 16
"""Limit of tokens in an idle step. An end of turn and a header are about five."""

_LOOKED_AT = 64  # sessions examined per step: most may have no idle work

QUIET_S = 0.1
"""Pause after the last turn: programs have sent their next turn by then, people have not."""


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
        """A turn has ended: its session is queued for idle prefill."""
        if self._enabled:
            self._due[context.session] = None
            self._quiet_at_s = self._clock() + QUIET_S

    def forget(self, session: SessionId) -> None:
        """A session is closed."""
        self._due.pop(session, None)

    def begin(self) -> list[EarlyWork]:
        """Return sessions for a step, longest idle first; [] when there is no work now.

        The caller has checked that no turn waits or runs.
        """
        batch: list[EarlyWork] = []
        if self.rest_s:
            return batch
        left = STEP_TOKENS
        for _ in range(min(_LOOKED_AT, len(self._due))):
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
        """The step has run."""
        for work in batch:
            self._memory.note_idle(work.context, work.owed, work.drafts)

    def give_up(self, batch: Sequence[EarlyWork]) -> None:
        """The step ran out of memory: the turns will compute these ids."""
        for work in batch:
            self._memory.drop_idle(work.context, work.owed)

    def fail(self, batch: Sequence[EarlyWork]) -> None:
        """The step has failed: the KV that it read is discarded."""
        for work in batch:
            self._memory.distrust(work.context)

    def _amount(self, context: Context) -> tuple[int, int]:
        """Number of owed ids and of drafts to compute; (0, 0): none for this session.

        The session must have all its former KV, since history is not rebuilt for a turn that may
        never come; no edit may be due; and the tail must be its own, since a copy costs a block.
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
