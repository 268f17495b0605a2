"""Lifecycle of turns: queued, started, fed with tokens, ended. Loop thread only.

Every submitted turn ends here with exactly one ending, and every free or cut of a session's KV goes
through `Turns.reclaim`.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Literal, Protocol, assert_never

from engine.config import EngineConfig
from engine.core.fairness import PROMPT_COST, REPLY_COST, VirtualCounters
from engine.core.idle_prefill import IdlePrefill
from engine.core.run_queue import RunQueue
from engine.core.slot import Slot
from engine.core.turn_admission import AdmissionView, refusal
from engine.counters import Counters
from engine.ipc.messages import (
    CancelTurn,
    Degradation,
    DegradationReason,
    SubmitTurn,
    TurnCounts,
    TurnDegraded,
    TurnDelta,
    TurnDone,
    TurnEvent,
    TurnFailed,
    TurnIncomplete,
    TurnStarted,
    TurnWaiting,
)
from engine.ipc.queries import ReclaimCause
from engine.kv.context import Activity, Context
from engine.kv.executor import Executor
from engine.kv.partition import blocks_for
from engine.text.detokenize import TextStream

_LOOK_EVERY_S = 0.25  # at the queue, for `TurnWaiting`: sorting it takes time
_APART_S = 1.0  # between two `TurnWaiting` of one turn

_Full = Literal["max_output_tokens", "memory_pressure", "context_length"]


class TokenText(Protocol):
    """The part of a tokenizer that the loop uses."""

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes of one token; empty for a special."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special tokens in it are encoded as text."""
        ...


class Turns:
    """Owns the run queue, and charges owners for tokens. Reports the turns' events to `emit`."""

    def __init__(  # noqa: PLR0913 -- the dependencies of a turn
        self,
        *,
        config: EngineConfig,
        memory: Executor,
        idle: IdlePrefill,
        tokenizer: TokenText,
        max_model_len: int,
        kv_bytes_per_block: int,
        counters: Counters,
        emit: Callable[[TurnEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._service = VirtualCounters()
        self._next_look_s = -inf
        self.queue = RunQueue(config.max_num_seqs, self._service)
        self._config = config
        self._memory = memory
        self._idle = idle
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._kv_bytes_per_block = kv_bytes_per_block
        self._counters = counters
        self._emit = emit
        self._clock = clock

    # --- submit and start ------------------------------------------------------------------------

    def submit(self, command: SubmitTurn) -> None:
        """Queue a turn, or refuse it before any work."""
        context = self._memory.context(command.session)
        refused = refusal(command, self._admission_view(command, context))
        if refused is not None:
            self._emit(
                TurnFailed(
                    turn=command.turn,
                    code=refused.code,
                    message=refused.message,
                    counts=TurnCounts(),
                )
            )
        elif context is not None:
            self._enqueue(command, context)

    def start(self, slot: Slot) -> None:
        """Start a waiting turn that has its blocks. A preempted one resumes without an event."""
        self.queue.admit(slot)
        context, counters = slot.context, self._counters
        self._memory.note_changed(context.session)
        slot.reported_wait = None
        if slot.started_s is not None:
            restored, _ = context.take_restored()
            counters.restored_tokens += restored
            again = context.computed_len - context.table.kept_len
            counters.recomputed_tokens += max(0, again)
            self._report_evicted(slot, restored + again)
            return
        slot.start(self._clock())
        counters.reused_tokens += slot.reused_tokens
        counters.restored_tokens += slot.restored_tokens
        counters.recomputed_tokens += slot.recomputed_tokens
        counters.new_tokens += slot.new_tokens
        prompt_tokens = slot.recomputed_tokens + slot.new_tokens
        weight = slot.command.terms.weight
        self._service.charge(context.salt, prompt_tokens * PROMPT_COST, weight)
        self._emit(
            TurnStarted(
                turn=slot.turn,
                reused_tokens=slot.reused_tokens,
                restored_tokens=slot.restored_tokens,
                restored_from=slot.restored_from,
                recomputed_tokens=slot.recomputed_tokens,
                new_tokens=slot.new_tokens,
                rebuilt_exact=context.rebuilt_exact,
                queue_ms=self._counts(slot, context.table.block_count).queue_ms,
            )
        )
        self._report_evicted(slot, slot.restored_tokens + slot.recomputed_tokens)

    def _report_evicted(self, slot: Slot, lost_tokens: int) -> None:
        if slot.context.was_evicted and lost_tokens > 0:  # otherwise all of it was found
            self._report(slot, "evict")
        slot.context.was_evicted = False

    def degrade(
        self, slot: Slot, step: Degradation, reason: DegradationReason = "memory_pressure"
    ) -> None:
        """Report that a turn is affected: memory is short, or a higher priority has its place."""
        if step == "limit_running" and step in slot.reported:
            return  # reported already
        self._counters.degradations[step] += 1
        self._report(slot, step, reason)

    def _report(
        self, slot: Slot, step: Degradation, reason: DegradationReason = "memory_pressure"
    ) -> None:
        if step not in slot.reported:
            slot.reported.add(step)
            self._emit(TurnDegraded(turn=slot.turn, step=step, reason=reason))

    def report_waits(self) -> None:
        """Report waiting turns whose cause or position has changed since their last report.

        Turns in the background get none.
        """
        now_s, queue = self._clock(), self.queue
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _LOOK_EVERY_S
        free = queue.limit.most - len(queue.running)
        for position, slot in enumerate(queue.in_order(), start=1):
            event = TurnWaiting(
                turn=slot.turn, cause="blocks" if position <= free else "slot", position=position
            )
            is_due = slot.reported_wait is None or now_s - slot.wait_reported_s >= _APART_S
            if is_due and event != slot.reported_wait and not slot.background:
                slot.reported_wait, slot.wait_reported_s = event, now_s
                self._emit(event)

    def restrain_background(self) -> None:
        """Keep background turns from taking blocks of idle sessions.

        One that lacks blocks waits while other turns may free some, and fails otherwise.
        """
        for slot in self.queue.in_background():
            if self.has_spare_blocks(slot):
                continue
            if slot.context.activity is Activity.RUNNING:
                self.pause_background(slot)
            elif not self.queue.foreground_count:
                self.fail(slot, "queue_full", "no blocks are free for a background turn")

    def pause_background(self, slot: Slot) -> None:
        """Return a running background turn to the queue, and free its KV.

        Its full blocks can still be hit. It does not count as a preemption of the turn, because a
        background turn may be stopped any number of times.
        """
        self.queue.preempt(slot)
        self._memory.release(slot.context)
        self._counters.preemptions += 1

    def has_spare_blocks(self, slot: Slot) -> bool:
        """Whether a turn can run to its end on its blocks and those that no session holds."""
        context, command = slot.context, slot.command
        limit = len(context.ids) - command.generate
        tokens = self._memory.outstanding(context, limit)
        tokens += slot.tokens_left * command.generate + len(command.close_ids)
        if context.activity is Activity.RUNNING:
            needed = context.table.blocks_needed(tokens)
        else:  # a tail may have to be copied
            needed = blocks_for(tokens, self._config.block_size) + 1
            needed += self._memory.unheld_hits(context, limit)
        return needed <= self._memory.pool.available_count

    def _enqueue(self, command: SubmitTurn, context: Context) -> None:
        now_s = self._clock()
        replies = command.max_output_tokens if command.generate else 0
        more = len(command.ids) + replies + len(command.close_ids)
        self._memory.leave_room(context, more)
        context.append(command.ids)
        self._memory.claim_drafts(context)
        self._memory.note_turn(context, len(command.ids), command.terms)
        tokenizer = self._tokenizer
        slot = Slot(
            command=command,
            context=context,
            stream=TextStream(tokenizer.token_bytes, tokenizer.encode, command.sampling.stop),
            max_output_tokens=min(
                command.max_output_tokens, self._max_model_len - len(context.ids)
            ),
            submitted_s=now_s,
        )
        self.queue.enqueue(slot)

    def _admission_view(self, command: SubmitTurn, context: Context | None) -> AdmissionView:
        pool, queue, config = self._memory.pool, self.queue, self._config
        turns, max_turns = queue.foreground_count, config.max_num_seqs + config.max_num_waiting
        context_tokens, is_first = None, False
        if context is not None:
            context_tokens = len(context.ids)
            is_late = turns >= max_turns and not command.background
            is_first = is_late and not queue.has_turn_of(context.salt)
        return AdmissionView(
            context_tokens=context_tokens,
            busy=context is not None and context.activity is not Activity.IDLE,
            turns=turns,
            max_turns=max_turns,
            is_first=is_first,
            total_blocks=pool.total,
            block_size=config.block_size,
            max_model_len=self._max_model_len,
            max_session_blocks=config.max_resident_blocks,
            max_user_blocks=config.max_user_resident_blocks,
        )

    # --- tokens --------------------------------------------------------------------------------

    def take_tokens(self, slot: Slot, tokens: Sequence[int]) -> bool:
        """A running turn sampled its next tokens; False when one of them ended it.

        All but the last were drafts, and are in the context already. Those after the end are
        dropped with their KV.
        """
        slot.context.append(tokens[-1:])
        weight = slot.command.terms.weight
        self._service.charge(slot.context.salt, len(tokens) * REPLY_COST, weight)
        slot.drew(len(tokens), self._clock(), self._counters.token_times)
        text = ""
        for token in tokens:
            slot.output_tokens += 1
            self._counters.generated_tokens += 1
            if token in slot.command.stop_ids:
                self._end_reply(slot, None, text)
                return False
            slot.output.append(token)
            if slot.occurrences is not None:
                slot.occurrences.add(token)
            slot.unsent_tokens += 1
            text += slot.stream.push(token)
            if slot.stream.stopped:
                self._end_reply(slot, None, text)
                return False
        if slot.tokens_left <= 0:
            self._end_reply(slot, _why_full(slot), text)
            return False
        self._send(slot, text)
        return True

    def _send(self, slot: Slot, text: str) -> None:
        if text:
            self._emit(TurnDelta(turn=slot.turn, text=text, tokens=slot.unsent_tokens))
            slot.unsent_tokens = 0

    def shorten(self, slot: Slot, tokens: int) -> None:
        """Limit a running turn to this many more tokens."""
        slot.max_output_tokens = slot.output_tokens + tokens
        slot.shortened = True
        self.degrade(slot, "shorten")

    # --- endings: each is the last event of its turn ---------------------------------------------

    def end_for_memory(self, slot: Slot) -> None:
        """End a turn with its reply so far: others need its blocks."""
        self.degrade(slot, "end_stream")
        self._end_reply(slot, "memory_pressure", "")

    def finish_prefill(self, slot: Slot) -> None:
        """End a turn that generates nothing: all its ids have KV."""
        counts = self._commit(slot, [], "finished")
        kept = list(slot.command.close_ids)
        self._emit(TurnDone(turn=slot.turn, text="", kept_ids=kept, counts=counts))

    def cancel(self, command: CancelTurn) -> None:
        """Stop a turn in any state; nothing happens when it has ended."""
        slot = self.queue.of_turn(command.turn)
        if slot is None:
            return
        match command.reason:
            case "queue_timeout":
                if slot.started_s is None:  # otherwise it left the queue just in time
                    self.fail(slot, "queue_timeout", "no running slot became free in time")
            case "cancelled" | "deadline" | "disconnected":
                self._end_cancelled(slot, command.reason, keep=command.keep)
            case _:
                assert_never(command.reason)

    def fail(
        self,
        slot: Slot,
        code: Literal["internal_error", "queue_timeout", "queue_full"],
        message: str,
    ) -> None:
        """End a turn without an answer."""
        counts = self._roll_back(slot, code)
        self._emit(TurnFailed(turn=slot.turn, code=code, message=message, counts=counts))

    def _end_reply(self, slot: Slot, reason: _Full | None, text: str) -> None:
        stream = slot.stream
        self._send(slot, text + stream.finish())
        reply = stream.kept_ids  # all that was sampled, or the ids of the text before a stop
        counts = self._commit(slot, reply, reason or "finished")
        kept = [*reply, *slot.command.close_ids]
        if reason is None:
            done = TurnDone(turn=slot.turn, text=stream.text, kept_ids=kept, counts=counts)
            self._emit(done)
            return
        self._emit(
            TurnIncomplete(
                turn=slot.turn,
                reason=reason,
                text=stream.text,
                kept_ids=kept,
                rolled_back=False,
                counts=counts,
            )
        )

    def _end_cancelled(
        self, slot: Slot, reason: Literal["cancelled", "deadline", "disconnected"], *, keep: bool
    ) -> None:
        if keep:
            slot.stream.cut()
            reply = slot.stream.kept_ids
            counts = self._commit(slot, reply, reason)
            kept = [*reply, *slot.command.close_ids]
        else:
            counts = self._roll_back(slot, reason)
            slot.stream.cut()
            kept = []
        self._emit(
            TurnIncomplete(
                turn=slot.turn,
                reason=reason,
                text=slot.stream.text,
                kept_ids=kept,
                rolled_back=not keep,
                counts=counts,
            )
        )

    def _roll_back(self, slot: Slot, cause: ReclaimCause) -> TurnCounts:
        context, blocks = slot.context, slot.context.table.block_count
        self.reclaim(context, cause, length=context.committed)
        self._expect_next(context, cause)
        return self._counts(slot, blocks)

    def _commit(self, slot: Slot, reply: list[int], cause: ReclaimCause) -> TurnCounts:
        context = slot.context
        counts = self._counts(slot, context.table.block_count)
        same = common_prefix(slot.output, reply)
        self.reclaim(context, cause, length=slot.prompt_len + same)
        context.append(reply[same:])
        context.append(slot.command.close_ids)
        context.commit()
        self._memory.note_changed(context.session)
        context.draft_ids = slot.command.draft_ids
        self._expect_next(context, cause)
        return counts

    def _expect_next(self, context: Context, cause: ReclaimCause) -> None:
        if cause != "disconnected":  # a disconnected client is not expected back
            self._idle.expect(context)

    def reclaim(
        self, context: Context, cause: ReclaimCause, *, length: int, release: bool = False
    ) -> None:
        """Free a session's KV beyond its first `length` ids, or (`release`) all of it.

        A queued or running turn of it leaves the queue: the caller reports its ending.
        """
        started_s = self._clock()
        release = release or not self._config.retain_kv
        if length < len(context.ids) or not release:
            self._memory.cut(context, length)
        if release:
            self._memory.release(context)
        # The blocks are free from here on: the bookkeeping below is not part of the measured time.
        context.last_used_s = self._clock()
        self._counters.reclaimed(cause, context.last_used_s - started_s)
        slot = self.queue.of_session(context.session)
        if slot is not None:
            self.queue.remove(slot)
            self._memory.free_later(slot)
            self._memory.note_turn_end(context)
        self._memory.note_changed(context.session)

    def _counts(self, slot: Slot, blocks: int) -> TurnCounts:
        return slot.counts(
            now_s=self._clock(), blocks=blocks, kv_bytes_per_block=self._kv_bytes_per_block
        )


def _why_full(slot: Slot) -> _Full:
    if slot.output_tokens >= slot.command.max_output_tokens:
        return "max_output_tokens"
    return "memory_pressure" if slot.shortened else "context_length"


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix of two sequences."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
