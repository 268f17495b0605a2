"""Executes commands that set, edit, fork, cut, release and close contexts. Loop thread only.

A context's running or queued turn is ended first.
"""

import logging
from collections.abc import Callable
from typing import assert_never

from engine.core.idle_prefill import IdlePrefill
from engine.core.turns import Turns, common_prefix
from engine.ids import SessionId
from engine.ipc.messages import (
    CancelTurn,
    CloseContext,
    ContextCommand,
    EditContext,
    ForkContext,
    HintContext,
    ParkContext,
    RaisePriority,
    ReleaseContext,
    SetContext,
    TruncateContext,
)
from engine.kv.context import Activity, Context
from engine.kv.executor import Executor
from engine.kv.history import BadEditsError
from engine.kv.partition import BadSpansError

_log = logging.getLogger(__name__)


class ContextCommands:
    """Owns no state: contexts are the executor's, turns the run queue's."""

    def __init__(
        self,
        *,
        memory: Executor,
        turns: Turns,
        idle: IdlePrefill,
        clock: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._turns = turns
        self._queue = turns.queue
        self._idle = idle
        self._clock = clock

    def handle(self, command: ContextCommand) -> None:
        """See `EngineLoop.handle`."""
        self._execute(command)
        self._memory.note_changed(command.session)

    def _execute(self, command: ContextCommand) -> None:
        match command:
            case SetContext():
                self._set(command)
            case ForkContext():
                self._fork(command)
            case TruncateContext():
                self._truncate(command)
            case ReleaseContext() | ParkContext():
                self._release(command)
            case CloseContext():
                self._end(command)
            case EditContext():
                self._edit(command)
            case HintContext(session=session, ttl_s=ttl_s, priority=priority):
                usage, now_s = self._memory.usage, self._clock()
                usage.hint(session, ttl_s=ttl_s, priority=priority, now_s=now_s)
            case RaisePriority(session=session):
                slot = self._queue.of_session(session)
                if slot is not None:
                    self._queue.raise_priority(slot)
            case _:
                assert_never(command)

    def _set(self, command: SetContext) -> None:
        context = self._memory.context(command.session)
        is_another = context is not None and (context.salt, context.volatile) != (
            command.salt,
            command.volatile,
        )
        if context is None or command.edits or is_another:
            self._close(command.session)
            try:
                self._memory.open(
                    command.session,
                    command.salt,
                    command.ids,
                    command.computed,
                    command.edits,
                )
            except BadEditsError as error:
                _log.error("context of %s cannot be set: %s", command.session, error)
                return
            self._memory.contexts[command.session].volatile = command.volatile
            return
        self._end_turn_of(context)
        self._memory.forget_edits(context)
        same = common_prefix(context.ids, command.ids)
        self._turns.reclaim(context, "replaced", length=same)
        self._memory.extend(context, command.ids[same:], command.computed)

    def _edit(self, command: EditContext) -> None:
        context = self._memory.context(command.session)
        if context is None:
            return
        self._end_turn_of(context)
        try:
            self._memory.edit(context, command.edit)
        except (BadEditsError, BadSpansError) as error:
            _log.error("context of %s cannot be edited: %s", command.session, error)
            self._close(command.session)

    def _fork(self, command: ForkContext) -> None:
        self._close(command.session)
        parent = self._memory.context(command.parent)
        if parent is not None and command.length <= parent.committed:
            self._memory.fork(parent, command.session, command.length)
            self._memory.contexts[command.session].volatile |= command.volatile

    def _truncate(self, command: TruncateContext) -> None:
        context = self._memory.context(command.session)
        if context is None:
            return
        self._end_turn_of(context)
        if command.length <= len(context.ids):
            self._turns.reclaim(context, "truncated", length=command.length)
        else:
            self._close(command.session)

    def _release(self, command: ReleaseContext | ParkContext) -> None:
        context = self._memory.context(command.session)
        # A turn that was submitted after the sender saw the session idle needs its KV.
        if context is not None and context.activity is Activity.IDLE:
            if isinstance(command, ParkContext):
                self._memory.write_out(context)
            self._turns.reclaim(context, "released", length=len(context.ids), release=True)

    def _close(self, session: SessionId) -> None:
        context = self._memory.context(session)
        if context is None:
            return
        self._end_turn_of(context)
        # Nothing is cut: a session that is opened again can restore its KV from the tiers.
        self._turns.reclaim(context, "closed", length=len(context.ids), release=True)
        self._idle.forget(session)
        self._memory.close_context(session)

    def _end(self, command: CloseContext) -> None:
        traces = self._memory.traces(command.session) if command.erase else None
        self._close(command.session)
        if traces is not None:
            self._memory.wipe(traces)
        self._memory.forget_usage(command.session)

    def _end_turn_of(self, context: Context) -> None:
        slot = self._queue.of_session(context.session)
        if slot is not None:
            self._turns.cancel(CancelTurn(turn=slot.turn, keep=False))
