"""Syncs a session's context to the engine and submits turns. Asyncio thread only."""

import asyncio
from dataclasses import dataclass, replace

import msgspec

from engine.client import TurnEvents
from engine.errors import EngineUnavailableError
from engine.messages import CloseContext, EditContext, ForkContext, SetContext, SubmitTurn
from sessiond.errors import RequestError
from sessiond.sessions.lifecycle import Event, after, is_free
from sessiond.sessions.live import LiveSession, Placement
from sessiond.sessions.parts import Parts
from sessiond.sessions.planning import TurnPlan
from sessiond.sessions.retention import hint_of
from sessiond.sessions.unerased import Unerased
from sessiond.store.records import SessionHints, StoredContext

_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parent:
    """A session whose placed context begins with the context at a fork."""

    session: LiveSession
    placement: Placement

    def covers(self, wanted: Placement) -> bool:
        """Whether the engine still holds enough of it."""
        return (
            self.session.placement is self.placement
            and self.placement.view is None
            and self.placement.epoch == wanted.epoch
            and self.placement.prompt_id == wanted.prompt_id
            and self.placement.tokens >= wanted.tokens
        )


class Placer:
    """Uses the cheapest source of a context: the placed one, a fork of a placed one, ids from SQL.

    The first two may be edited, which keeps their KV.
    """

    def __init__(self, parts: Parts) -> None:
        self._engine = parts.engine
        self._store = parts.store
        self._sessions = parts.sessions
        self._ready_timeout_s = parts.limits.engine_ready_timeout_s
        self.unerased = Unerased(parts.engine)

    async def submit(self, live: LiveSession, plan: TurnPlan, command: SubmitTurn) -> TurnEvents:
        """Sync the context that the plan starts from, then submit the turn.

        Raises:
            RequestError: the engine did not come back in time.
            StoreError: the ids can't be read.
        """
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                command = await self._with_front(live, plan, command)
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
        wanted = Placement(
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
        live.placement = wanted
        live.state = after(live.state, Event.PLACE)

    async def erase(self, live: LiveSession) -> None:
        """Securely delete the KV of all ids that the session is known to have had.

        Contexts that the engine no longer knows are sent again. Where KV outlives an engine,
        deletes that an engine did not complete are sent to the next one.

        Raises:
            StoreError: the ids can't be read.
        """
        known = await self._store.dead_ends(live.user_id, live.id, live.tip_id)
        dead = [_set_command(live, stored) for stored in known]
        may_last = self.unerased.may_be and not live.volatile
        is_forgotten = not live.is_placed(self._engine.epoch)
        whole = await self._whole(live) if may_last or is_forgotten else []
        close = CloseContext(session=live.id, erase=True)
        epoch = self._engine.epoch
        is_placed = live.is_placed(epoch)
        try:
            if is_placed:
                self._engine.send(close)
            for context in dead if is_placed else dead + whole:
                self._engine.send(context)
                self._engine.send(close)
        except EngineUnavailableError:
            epoch = 0
        if may_last:
            self.unerased.note(dead + whole, epoch=epoch)
        live.placement = None

    async def _whole(self, live: LiveSession) -> list[SetContext]:
        if live.tip_id is None or live.prompt is None:
            return []
        stored = await self._store.context(live.user_id, live.prompt.id, live.tip_id)
        return [_set_command(live, stored)]

    def _send_fork(self, live: LiveSession, parent: _Parent, wanted: Placement) -> None:
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
            wanted = Placement(
                epoch=self._engine.epoch,
                prompt_id=plan.prompt.id,
                tip_id=plan.parent_id,
                tokens=0 if plan.parent_id is None else plan.start_tokens,
                view=plan.view,
            )
            if live.placement != wanted and not self._derive(live, plan, wanted, parent):
                if stored is None:
                    stored = await self._store.context(
                        live.user_id, wanted.prompt_id, wanted.tip_id, wanted.view
                    )
                    continue
                self._set(live, stored, prompt_id=wanted.prompt_id)
            live.placement = wanted
            return self._engine.submit(command)

    def _derive(
        self, live: LiveSession, plan: TurnPlan, wanted: Placement, parent: _Parent | None
    ) -> bool:
        """Derive the context from the engine's; False: not possible."""
        left = wanted  # the context after the tip
        if plan.edit is not None:
            left = replace(wanted, view=None, tokens=plan.edit.at)
        elif plan.view is not None:
            return False
        if live.placement != left:
            if parent is None or not parent.covers(left):
                return False
            self._send_fork(live, parent, left)
        if plan.edit is not None:
            self._engine.send(EditContext(session=live.id, edit=plan.edit))
        return True

    async def _with_front(
        self, live: LiveSession, plan: TurnPlan, command: SubmitTurn
    ) -> SubmitTurn:
        """Send the system prefix with a first turn: in a context it would count as lost KV."""
        if plan.parent_id is not None:
            return command
        if plan.new_prompt is not None:
            front = list(plan.new_prompt.ids)
        else:
            front = await self._store.context_ids(live.user_id, plan.prompt.id, None)
        return msgspec.structs.replace(command, ids=front + command.ids)

    def _set(self, live: LiveSession, stored: StoredContext, *, prompt_id: str) -> None:
        if live.placement is not None and live.placement.prompt_id != prompt_id:
            # Prefixes may start alike, but usage must report no reused tokens.
            self._engine.send(CloseContext(session=live.id))
        self._engine.send(_set_command(live, stored))
        self._hint(live)

    def _hint(self, live: LiveSession) -> None:
        """Send the session's hints, which a new context lacks."""
        if live.hints != SessionHints():
            self._engine.send(hint_of(live))

    async def _parent(self, live: LiveSession, tip_id: str | None) -> _Parent | None:
        """The session that this one was forked from, if the engine may still hold it."""
        if live.placement is not None or live.base_session_id is None:
            return None
        parent = self._sessions.get(live.base_session_id)
        if parent is None or parent.placement is None or tip_id is None:
            return None
        seen = parent.placement
        covered = await self._store.covers(live.user_id, tip_id, seen.tip_id)
        return _Parent(session=parent, placement=seen) if covered else None


def _set_command(live: LiveSession, stored: StoredContext) -> SetContext:
    return SetContext(
        session=live.id,
        salt=live.salt,
        ids=stored.ids,
        computed=stored.computed,
        edits=stored.edits,
        volatile=live.volatile,
    )
