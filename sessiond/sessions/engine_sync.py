"""Brings a session's context into the engine and submits its turns. Asyncio thread only.

Deletions that an engine may have missed are sent again to its successor, since a disk tier
outlives the engine that wrote it.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from engine.errors import EngineUnavailableError
from engine.ipc.client import EngineClient, TurnEvents
from engine.ipc.messages import CloseContext, EditContext, ForkContext, SetContext, SubmitTurn
from engine.ipc.queries import GetContext
from sessiond.errors import RequestError
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.live_session import (
    EngineResidency,
    LifecycleEvent,
    LiveSession,
    after,
    is_free,
)
from sessiond.sessions.plan import TurnPlan
from sessiond.sessions.retention import hint_of
from sessiond.store.records import SessionHints, StoredContext
from sessiond.store.store import Store

_ANSWERS_WITHIN_S = 1.0
_TRIES = 5


@dataclass(slots=True, eq=False)
class _Owed:
    """The pending delete of a session. `epoch`: of the engine that got it; 0: none."""

    contexts: Sequence[SetContext]
    epoch: int


class PendingDeletes:
    """Pending deletes, kept until an engine has completed them."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._owed: list[_Owed] = []

    def __len__(self) -> int:
        return len(self._owed)

    @property
    def may_be(self) -> bool:
        """Whether KV outlives an engine."""
        return any(tier.name == "disk" for tier in self._engine.info.tiers)

    def note(self, contexts: Sequence[SetContext], *, epoch: int) -> None:
        """Add all contexts of a session; the engine of `epoch` got the command, 0: none."""
        if contexts:
            self._owed.append(_Owed(contexts, epoch))

    async def settle(self) -> None:
        """Send incomplete deletes to a new engine; drop completed ones."""
        if not self._owed:
            return
        with contextlib.suppress(EngineUnavailableError, TimeoutError):
            epoch = self._engine.epoch
            sent = [owed for owed in self._owed if owed.epoch == epoch]
            for owed in self._owed:
                if owed.epoch != epoch:
                    self._send(owed)
                    owed.epoch = epoch
            if sent:
                async with asyncio.timeout(_ANSWERS_WITHIN_S):
                    await self._engine.ask(GetContext(session=sent[0].contexts[0].session))
                if self._engine.epoch == epoch:
                    self._owed = [owed for owed in self._owed if owed not in sent]

    def _send(self, owed: _Owed) -> None:
        for context in owed.contexts:
            self._engine.send(context)
            self._engine.send(CloseContext(session=context.session, erase=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parent:
    """A session whose resident context begins with the fork's context."""

    session: LiveSession
    residency: EngineResidency

    def covers(self, wanted: EngineResidency) -> bool:
        """Whether the engine still holds the parent's context and it is long enough."""
        return (
            self.session.residency is self.residency
            and self.residency.view is None
            and self.residency.epoch == wanted.epoch
            and self.residency.prompt_id == wanted.prompt_id
            and self.residency.tokens >= wanted.tokens
        )


class EngineSync:
    """Uses the cheapest source: the resident context, a fork of a resident one, ids from SQL.

    The first two may be edited, which keeps their KV.
    """

    def __init__(
        self, *, engine: EngineClient, store: Store, sessions: LiveSessions, ready_timeout_s: float
    ) -> None:
        self._engine = engine
        self._store = store
        self._sessions = sessions
        self._ready_timeout_s = ready_timeout_s
        self.pending_deletes = PendingDeletes(engine)

    async def submit(self, live: LiveSession, plan: TurnPlan, command: SubmitTurn) -> TurnEvents:
        """Sync the context that the plan starts from, then submit the turn.

        Raises:
            RequestError: the engine did not restart in time.
            StoreError: the ids can't be read.
        """
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                command = await self._with_system_prefix(live, plan, command)
                parent = await self._parent(live, plan.parent_id)
                for _ in range(_TRIES):
                    await self._engine.ready()
                    try:
                        return await self._try_submit(live, plan, command, parent)
                    except EngineUnavailableError:
                        continue
        except TimeoutError:
            pass
        raise RequestError(
            "engine_restarted", "the engine is restarting; try again", retry_after_s=1
        )

    async def place_fork(self, live: LiveSession) -> None:
        """Share the parent's blocks with a fork at once, if the engine has them.

        Otherwise the fork's first turn syncs its context.
        """
        parent = await self._parent(live, live.tip_id)
        if parent is None or live.prompt is None or not is_free(live.state):
            return
        wanted = EngineResidency(
            epoch=self._engine.epoch,
            prompt_id=live.prompt.id,
            tip_id=live.tip_id,
            tokens=live.tokens,
        )
        if not parent.covers(wanted):
            return
        try:
            self._send_fork(live, parent, wanted)
        except EngineUnavailableError:
            return
        live.residency = wanted
        live.state = after(live.state, LifecycleEvent.PLACE)

    async def erase(self, live: LiveSession) -> None:
        """Securely delete the KV of all stored ids of the session.

        Contexts that the engine no longer knows are sent again. With a disk tier, deletes that an
        engine did not complete are sent to the next one.

        Raises:
            StoreError: the ids can't be read.
        """
        known = await self._store.dead_ends(live.user_id, live.id, live.tip_id)
        dead = [_set_command(live, stored) for stored in known]
        may_last = self.pending_deletes.may_be and not live.volatile
        is_forgotten = not live.is_resident(self._engine.epoch)
        whole = await self._whole(live) if may_last or is_forgotten else []
        close = CloseContext(session=live.id, erase=True)
        epoch = self._engine.epoch
        is_resident = live.is_resident(epoch)
        try:
            if is_resident:
                self._engine.send(close)
            for context in dead if is_resident else dead + whole:
                self._engine.send(context)
                self._engine.send(close)
        except EngineUnavailableError:
            epoch = 0
        if may_last:
            self.pending_deletes.note(dead + whole, epoch=epoch)
        live.residency = None

    async def _whole(self, live: LiveSession) -> list[SetContext]:
        if live.tip_id is None or live.prompt is None:
            return []
        stored = await self._store.context(live.user_id, live.prompt.id, live.tip_id)
        return [_set_command(live, stored)]

    def _send_fork(self, live: LiveSession, parent: _Parent, wanted: EngineResidency) -> None:
        self._engine.send(
            ForkContext(session=live.id, parent=parent.session.id, length=wanted.tokens)
        )
        self._hint(live)

    async def _try_submit(
        self,
        live: LiveSession,
        plan: TurnPlan,
        command: SubmitTurn,
        parent: _Parent | None,
    ) -> TurnEvents:
        stored = StoredContext(ids=[], computed=0) if plan.parent_id is None else None
        while True:
            # No await from here to the submit: an engine that restarts in between would get a
            # turn on a context that it does not have.
            wanted = EngineResidency(
                epoch=self._engine.epoch,
                prompt_id=plan.prompt.id,
                tip_id=plan.parent_id,
                tokens=0 if plan.parent_id is None else plan.start_tokens,
                view=plan.view,
            )
            if live.residency != wanted and not self._derive(live, plan, wanted, parent):
                if stored is None:
                    stored = await self._store.context(
                        live.user_id, wanted.prompt_id, wanted.tip_id, wanted.view
                    )
                    continue
                self._set(live, stored, prompt_id=wanted.prompt_id)
            live.residency = wanted
            return self._engine.submit(command)

    def _derive(
        self, live: LiveSession, plan: TurnPlan, wanted: EngineResidency, parent: _Parent | None
    ) -> bool:
        """Derive the context from one in the engine; False: not possible."""
        left = wanted  # the context after the tip
        if plan.edit is not None:
            left = replace(wanted, view=None, tokens=plan.edit.at)
        elif plan.view is not None:
            return False
        if live.residency != left:
            if parent is None or not parent.covers(left):
                return False
            self._send_fork(live, parent, left)
        if plan.edit is not None:
            self._engine.send(EditContext(session=live.id, edit=plan.edit))
        return True

    async def _with_system_prefix(
        self, live: LiveSession, plan: TurnPlan, command: SubmitTurn
    ) -> SubmitTurn:
        """Prepend the system prefix to a first turn: in a context it would count as lost KV."""
        if plan.parent_id is not None:
            return command
        if plan.new_prompt is not None:
            system_prefix = list(plan.new_prompt.ids)
        else:
            system_prefix = await self._store.context_ids(live.user_id, plan.prompt.id, None)
        return msgspec.structs.replace(command, ids=system_prefix + command.ids)

    def _set(self, live: LiveSession, stored: StoredContext, *, prompt_id: str) -> None:
        if live.residency is not None and live.residency.prompt_id != prompt_id:
            # The prefixes may start with the same ids, but usage must report no reused tokens.
            self._engine.send(CloseContext(session=live.id))
        self._engine.send(_set_command(live, stored))
        self._hint(live)

    def _hint(self, live: LiveSession) -> None:
        """Send the session's hints, which a new context lacks."""
        if live.hints != SessionHints():
            self._engine.send(hint_of(live))

    async def _parent(self, live: LiveSession, tip_id: str | None) -> _Parent | None:
        """The session that this one was forked from, if the engine may still hold it."""
        if live.residency is not None or live.base_session_id is None:
            return None
        parent = self._sessions.get(live.base_session_id)
        if parent is None or parent.residency is None or tip_id is None:
            return None
        seen = parent.residency
        covered = await self._store.covers(live.user_id, tip_id, seen.tip_id)
        return _Parent(session=parent, residency=seen) if covered else None


def _set_command(live: LiveSession, stored: StoredContext) -> SetContext:
    return SetContext(
        session=live.id,
        salt=live.salt,
        ids=stored.ids,
        computed=stored.computed,
        edits=stored.edits,
        volatile=live.volatile,
    )
