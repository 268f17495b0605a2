"""The engine's loop: commands in, steps, events out. Owns all of the engine's state.

Single-threaded: its driver (a thread, a process's main) calls from one thread only.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, assert_never

from engine.config import EngineConfig
from engine.core.context_commands import ContextCommands
from engine.core.idle_prefill import IdlePrefill, Prefetch
from engine.core.inspection import (
    context_view,
    context_views,
    engine_stats,
    page_keys,
    pool_map,
    residency,
    stored_blocks,
)
from engine.core.oom_split import Draws, execute
from engine.core.pressure import Pressure
from engine.core.run_queue import RunQueue
from engine.core.scheduler import StepView, TurnLoad, Work, plan_step
from engine.core.slot import Slot
from engine.core.speculation import Speculation
from engine.core.step_cost import Pace, StepCost, StepLoad, StepPrice
from engine.core.turns import TokenText, Turns
from engine.counters import Counters
from engine.errors import DeviceLostError
from engine.ipc.messages import CancelTurn, Command, SubmitTurn, TurnEvent
from engine.ipc.queries import (
    GetAudit,
    GetContext,
    GetContexts,
    GetPageKeys,
    GetPool,
    GetProcess,
    GetResidency,
    GetStats,
    GetStored,
    Query,
    QueryResult,
)
from engine.kv.auditor import audit
from engine.kv.context import Activity
from engine.kv.eviction import PlacementConfig
from engine.kv.executor import Executor
from engine.kv.page_table import MovePages
from engine.kv.step import NOT_FINITE, ModelRunner, SequenceStep
from engine.kv.tiers.tiers import Tiers, no_tiers
from engine.system.process_memory import process_memory
from policies.registry import placement_policy

__all__ = ["EngineLoop", "TokenText"]

_log = logging.getLogger(__name__)

_POLL_S = 0.002  # polling interval of transfers that a turn waits for
_FLUSH_S = 3.0  # less than the engine's stop timeout
_LEAST_BLOCK_S = 1e-6


class _DueStep(NamedTuple):
    slot: Slot
    step: SequenceStep


class EngineLoop:
    """Runs turns on one pool of blocks.

    `fingerprint` names model version, kernel path and dtype: it is part of every prefix key.
    `move_pages` moves KV on `shifted` edits; None: it holds no position, so nothing moves. `clock`
    gives seconds, monotonic.
    """

    def __init__(  # noqa: PLR0913 -- the one place where an engine is wired
        self,
        *,
        config: EngineConfig,
        num_blocks: int,
        kv_bytes_per_block: int,
        max_model_len: int,
        fingerprint: str,
        runner: ModelRunner,
        tiers: Tiers | None = None,
        move_pages: MovePages | None = None,
        tokenizer: TokenText,
        emit: Callable[[TurnEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._kv_bytes_per_block = kv_bytes_per_block
        self._runner = runner
        self._clock = clock
        self._counters = Counters()
        self._cost = StepCost()
        self._speculation: Speculation | None = None
        if config.num_speculative_tokens:
            self._speculation = Speculation(
                num_speculative_tokens=config.num_speculative_tokens,
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                target_s=config.target_inter_token_ms / 1000,
            )
        self._memory = Executor(
            num_blocks=num_blocks,
            block_size=config.block_size,
            fingerprint=fingerprint,
            caching=config.enable_prefix_caching,
            max_replay_tokens=config.max_replay_tokens,
            copy_block=runner.copy_block,
            zero_block=runner.zero_block,
            placement=PlacementConfig(
                name=config.placement_policy,
                policy=placement_policy(config.placement_policy),
                low_watermark=config.kv_low_watermark,
                high_watermark=config.kv_high_watermark,
                max_user_blocks=config.max_user_resident_blocks,
            ),
            tiers=no_tiers() if tiers is None else tiers,
            counters=self._counters,
            clock=clock,
            recompute_s=self._block_s,
            move_pages=move_pages,
        )
        self._idle = IdlePrefill(
            config=config, memory=self._memory, max_model_len=max_model_len, clock=clock
        )
        self._turns = Turns(
            config=config,
            memory=self._memory,
            idle=self._idle,
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            kv_bytes_per_block=kv_bytes_per_block,
            counters=self._counters,
            emit=emit,
            clock=clock,
        )
        self._queue = self._turns.queue
        self._pressure = Pressure(
            config=config, memory=self._memory, turns=self._turns, counters=self._counters
        )
        self._prefetch = Prefetch(self._queue, self._memory)
        self._contexts = ContextCommands(
            memory=self._memory, turns=self._turns, idle=self._idle, clock=clock
        )
        self._step_times = self._counters.step_times

    @property
    def memory(self) -> Executor:
        """The contexts, the pool and the tiers, to look at: reading them changes nothing."""
        return self._memory

    @property
    def queue(self) -> RunQueue:
        """The turns that wait and those that run, to look at: reading them changes nothing."""
        return self._queue

    @property
    def has_work(self) -> bool:
        """Whether a turn waits or runs. If none does, `step` does idle prefill only."""
        return len(self._queue) > 0

    @property
    def rest_s(self) -> float | None:
        """See `engine.ipc.command_reader.Loop`."""
        rest_s, transfer_due = self._idle.rest_s, self._memory.transfer_due
        if transfer_due == "now" or (transfer_due == "when_idle" and not rest_s):
            return _POLL_S
        return rest_s

    def close(self) -> None:
        """Write pending KV to the tiers, for a few seconds at most, and close them."""
        self._memory.close(_FLUSH_S)

    def answer(self, query: Query) -> QueryResult:  # noqa: PLR0911 -- a table of queries
        """Answer a query about the engine's state."""
        memory = self._memory
        match query:
            case GetStats():
                return engine_stats(
                    memory=memory,
                    counters=self._counters,
                    queue=self._queue,
                    placement_policy=self._config.placement_policy,
                )
            case GetAudit():
                return audit(memory, kv_bytes_per_block=self._kv_bytes_per_block)
            case GetProcess():
                return process_memory(memory.pool.total * self._kv_bytes_per_block)
            case GetContext(session=session):
                return context_view(session, memory, self._kv_bytes_per_block)
            case GetContexts(sessions=sessions):
                return context_views(sessions, memory, self._kv_bytes_per_block)
            case GetPageKeys(salt=salt, ids=ids):
                return page_keys(salt, ids, memory)
            case GetStored(chains=chains):
                return stored_blocks(chains, memory)
            case GetResidency(sessions=sessions):
                return residency(sessions, memory, self._kv_bytes_per_block)
            case GetPool():
                return pool_map(memory.contexts, memory.pool, memory.kv_transfer.held)
            case _:
                assert_never(query)

    # --- commands ------------------------------------------------------------------------------

    def handle(self, command: Command) -> None:
        """Handle one command; may emit events.

        Setting, truncating, closing or forking over a context ends its running or queued turn
        first. A command that does not fit the current state (an unknown session, more ids than
        exist) leaves its session unknown, so that its next turn is refused as `engine_restarted`
        and the sender sets the context anew.
        """
        match command:
            case SubmitTurn():
                self._turns.submit(command)
            case CancelTurn():
                self._turns.cancel(command)
            case _:
                self._contexts.handle(command)

    # --- a step --------------------------------------------------------------------------------

    def step(self, flush: Callable[[], None] = lambda: None) -> bool:
        """Run one step of the model over the turns that are due; False when none was.

        `flush` is called before the model computes, so that events emitted up to then (a turn left
        the queue) need not wait for it.
        """
        self._memory.maintain()
        queue, prefetch = self._queue, self._prefetch
        if not (queue.running or queue.waiting):
            return self._step_idle(flush)
        started_s = self._clock()
        if queue.background:
            self._turns.restrain_background()
        if queue.waiting:
            self._pressure.share()
        due = self._gather()
        if queue.waiting:
            self._turns.report_waits()
        if queue.waiting or prefetch.prefetched or prefetch.skipped:
            prefetch.advance()  # after turns that may start have their blocks
        if due:
            flush()
            self._run(due)
            self._step_times.add(self._clock() - started_s)
        else:
            self._memory.await_transfers(_POLL_S)
        return True

    def _step_idle(self, flush: Callable[[], None]) -> bool:
        self._prefetch.advance()
        started_s = self._clock()
        batch = self._idle.begin()
        if not batch:
            if not self._idle.rest_s:
                self._memory.write_through()
            return False
        flush()
        try:
            self._runner.execute([one.step for one in batch])
        except MemoryError:
            self._note_shortage()
            self._idle.give_up(batch)
        except DeviceLostError:
            raise
        except Exception:
            _log.exception("an idle prefill step of %d turns failed", len(batch))
            self._idle.fail(batch)
        else:
            self._idle.finish(batch)
        self._step_times.add(self._clock() - started_s)
        return True

    def _gather(self) -> list[_DueStep]:
        price = self._cost.price
        plan = plan_step(self._view(price))
        preemptions = self._counters.preemptions
        tokens_of = dict(plan.work)
        work, all_have_room = [], True
        # In their order: a turn that is preempted for one of them has not been counted yet.
        for slot in list(self._queue.running):
            # up to the next edit, if one is due
            tokens = min(tokens_of.get(slot.turn, 0), slot.context.pending)
            if not tokens and slot.context.next_edit is None:
                continue
            if not self._has_room(slot, tokens):
                all_have_room = False
            elif tokens:
                work.append((slot, tokens))
        # A turn that lacks blocks or was just preempted holds up those behind it.
        if plan.admissions and all_have_room and self._counters.preemptions == preemptions:
            work += self._admit(plan.admissions)
        drafts = self._speculation.drafts(work, price) if self._speculation else {}
        due = []
        for slot, tokens in work:
            due.append(self._begin(slot, tokens, drafts.get(slot.turn, ())))
        return due

    def _has_room(self, slot: Slot, tokens: int) -> bool:
        """Whether a turn that has not been preempted in this step has blocks for its tokens."""
        if slot.context.activity is not Activity.RUNNING:
            return False
        if self._memory.try_reserve(slot.context, tokens):
            return True
        return self._pressure.make_room(slot, tokens)

    def _admit(self, admissions: Sequence[Work]) -> list[tuple[Slot, int]]:
        work = []
        for item in admissions:
            slot = self._queue.of_turn(item.turn)
            if slot is None:
                break
            if self._memory.restore(slot.context, _limit(slot)):
                continue  # other turns run until then
            # A turn that finds too few blocks holds up those behind it, too.
            if not self._memory.try_admit(slot.context, _limit(slot)):
                break
            self._turns.start(slot)
            if not slot.context.pending:
                self._turns.finish_prefill(slot)
            elif item.tokens:
                work.append((slot, min(item.tokens, slot.context.pending)))
        return work

    def _view(self, price: StepPrice) -> StepView:
        config, waiting, most = self._config, [], self._config.max_num_seqs
        if self._queue.waiting:
            candidates, most = self._pressure.candidates()
            for slot in candidates:
                pending = self._memory.outstanding(slot.context, _limit(slot))
                waiting.append(self._load(slot, pending))
        return StepView(
            running=list(map(self._running_load, self._queue.running)),
            waiting=waiting,
            max_num_seqs=most,
            block_size=config.block_size,
            pace=Pace(
                max_rows=config.max_num_batched_tokens,
                target_s=config.target_inter_token_ms / 1000,
                price=price,
                trusted_rows=self._cost.trusted_rows,
            ),
        )

    def _running_load(self, slot: Slot) -> TurnLoad:
        context = slot.context
        pending = context.outstanding
        if pending == 1:
            return TurnLoad(slot.turn, 1, len(context.ids) - 1)  # it decodes, so it has no rank
        return self._load(slot, pending)

    def _load(self, slot: Slot, pending: int) -> TurnLoad:
        context = slot.context
        first = max(0, len(context.ids) - pending)
        key = self._memory.next_key(context, first, _limit(slot)) if pending > 1 else None
        return TurnLoad(slot.turn, pending, first, key, slot.priority, self._queue.served(slot))

    def _block_s(self) -> float:
        """Seconds to prefill one block of tokens."""
        return max(_LEAST_BLOCK_S, self._config.block_size * self._cost.price.row_s)

    def _begin(self, slot: Slot, tokens: int, drafts: Sequence[int]) -> _DueStep:
        context = slot.context
        draws = slot.command.generate and tokens == context.pending and not context.stages
        checked = tokens + len(drafts)
        if not (drafts and draws and self._memory.try_reserve_spare(context, checked)):
            drafts = ()
        sample = slot.sample(len(drafts)) if draws else None
        return _DueStep(slot, self._memory.begin(slot.context, tokens, sample, drafts))

    def _run(self, due: list[_DueStep]) -> None:
        steps = [step for _, step in due]
        started_s = self._clock()
        try:
            shortages = self._counters.memory_shortages
            drawn = execute(self._runner, steps, self._note_shortage)
            if self._counters.memory_shortages == shortages:  # otherwise several steps ran
                self._note_cost(_load_of(due), self._clock() - started_s)
        except DeviceLostError:
            raise  # no later step can succeed: the process ends and is restarted
        except Exception:
            # Any error of the model fails the turns of this step, and no others.
            _log.exception("a step of %d turns failed", len(due))
            for slot, _ in due:
                self._memory.distrust(slot.context)
                self._turns.fail(slot, "internal_error", "the model's step failed")
            return
        for (slot, step), true in zip(due, drawn, strict=True):
            self._advance(slot, step, true)

    def _note_cost(self, load: StepLoad, seconds: float) -> None:
        if self._speculation:
            self._speculation.note(load, seconds, self._cost.price)
        self._cost.note(load, seconds)

    def _note_shortage(self) -> None:
        self._counters.memory_shortages += 1

    def _advance(self, slot: Slot, step: SequenceStep, tokens: Draws) -> None:
        if tokens is None:
            _log.error("turn %s failed: there is not enough memory for one row", slot.turn)
            self._memory.distrust(slot.context)
            self._turns.fail(slot, "internal_error", "there is not enough memory for the turn")
            return
        if NOT_FINITE in tokens:
            self._memory.distrust(slot.context)
            self._turns.fail(slot, "internal_error", "the model's logits are not finite")
            return
        self._memory.settle(slot.context, step, max(0, len(tokens) - 1))
        if tokens:
            goes_on = self._turns.take_tokens(slot, tokens)
            if goes_on and self._speculation:
                self._speculation.learn(slot, tokens)
        elif not slot.context.outstanding:
            self._turns.finish_prefill(slot)


def _limit(slot: Slot) -> int:
    # The last token before a sample is always computed, cached or not: its logits are needed.
    return len(slot.context.ids) - slot.command.generate


def _load_of(due: Sequence[_DueStep]) -> StepLoad:
    rows = kv_tokens = pairs = 0
    for slot, step in due:
        kept, count = slot.context.table.kept_len, len(step.token_ids)
        rows += count
        kv_tokens += kept
        pairs += kept * count - count * (count - 1) // 2
    return StepLoad(rows=rows, kv_tokens=kv_tokens, pairs=pairs)
