"""Facade of conversations and their turns. One asyncio loop; owns the live sessions."""

import asyncio
from collections.abc import Callable
from typing import Literal

from engine.client import EngineClient
from policies.registry import ContextPolicyRegistry
from sessiond.facts import (
    UNSET,
    AttachmentId,
    Caller,
    Census,
    ConversationView,
    InputItem,
    ItemPage,
    PolicyChoice,
    ResponseView,
    SessionFilter,
    SessionPage,
    SessionView,
    TurnRequest,
    Unset,
)
from sessiond.sessions.beginnings import Beginnings
from sessiond.sessions.binding import Binder
from sessiond.sessions.bound import BoundTurn
from sessiond.sessions.calm_clock import CalmClock
from sessiond.sessions.cancelling import Cancelling
from sessiond.sessions.chats import Chats
from sessiond.sessions.compaction import Compaction
from sessiond.sessions.context_policies import ContextPolicies, MakePolicy
from sessiond.sessions.conversations import Conversations
from sessiond.sessions.demand import Demand
from sessiond.sessions.drain_rate import DrainRate
from sessiond.sessions.following import Followers
from sessiond.sessions.foresight import Foresight
from sessiond.sessions.forking import Forks
from sessiond.sessions.housekeeping import Housekeeping
from sessiond.sessions.inspection import Inspector
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.listing import Listing
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.opening import Openings
from sessiond.sessions.parts import Parts
from sessiond.sessions.placing import Placer
from sessiond.sessions.planning import Planner
from sessiond.sessions.quotas import Quotas
from sessiond.sessions.repeats import Repeats
from sessiond.sessions.replays import Replay
from sessiond.sessions.replica import Replica, lease_s
from sessiond.sessions.retention import Retention
from sessiond.sessions.runner import TurnRunner
from sessiond.sessions.starter import TurnStarter
from sessiond.sessions.steering import Steering
from sessiond.sessions.text_format import TextFormat
from sessiond.sessions.transcript import Transcript
from sessiond.sessions.turn import Turn
from sessiond.sessions.unstored import UnstoredEndings
from sessiond.sessions.watchers import Watchers
from sessiond.store.records import Priority
from sessiond.store.records import Retention as RetentionName
from sessiond.store.store import Store

_NO_POLICY = PolicyChoice(type="none")
_OWN = SessionFilter()
_NOBODY = Watchers()
_BUILT_IN = ContextPolicyRegistry()

__all__ = ["BoundTurn", "ServiceLimits", "SessionService", "Turn"]


class SessionService:
    """Binds, stores, runs and ends turns. Errors for the client are raised as `RequestError`.

    `clock` gives unix seconds, `ticks` monotonic ones (None: the clock never jumps);
    `new_id("resp")` gives `resp_…`, never the same twice.
    """

    def __init__(  # noqa: PLR0913 -- the whole wiring, each part by its name
        self,
        *,
        store: Store,
        engine: EngineClient,
        text: TextFormat,
        limits: ServiceLimits,
        clock: Callable[[], float],
        ticks: Callable[[], float] | None = None,
        new_id: Callable[[str], str],
        new_seed: Callable[[], int],
        watchers: Watchers = _NOBODY,
        ignore_eos: bool = False,
        default_policy: PolicyChoice = _NO_POLICY,
        make_policy: MakePolicy = _BUILT_IN.make,
    ) -> None:
        ticks = ticks or clock
        self.drain_rate = DrainRate(ticks)
        self.demand = Demand(limits, self.drain_rate)
        parts = Parts(
            engine=engine,
            store=store,
            sessions=LiveSessions(store, clock, CalmClock(clock, ticks, calm_s=lease_s(limits))),
            unstored=UnstoredEndings(store),
            limits=limits,
            clock=clock,
            ticks=ticks,
            new_id=new_id,
            new_seed=new_seed,
            drain_rate=self.drain_rate,
            demand=self.demand,
            watchers=watchers,
        )
        transcript = Transcript(text, ignore_eos=ignore_eos)
        self.quotas = Quotas(
            parts,
            give_way=lambda caller, base: self.conversations.close_idle_fork(caller, keep=base),
            on_refused=watchers.quota_refused,
        )
        self._policies = ContextPolicies(parts, default=default_policy, make=make_policy)
        self._compaction = Compaction(parts, transcript=transcript)
        planner = Planner(
            parts,
            transcript=transcript,
            policies=self._policies,
            quotas=self.quotas,
            summaries=self._compaction,
        )
        placer = Placer(parts)
        starter = TurnStarter(
            parts, planner=planner, placer=placer, transcript=transcript, quotas=self.quotas
        )
        self._parts = parts
        self._retention = Retention(parts, on_given_back=self._compaction.cancel)
        self._binder = Binder(parts, retention=self._retention)
        self._runner = TurnRunner(
            parts,
            starter=starter,
            foresight=Foresight(planner=planner, compaction=self._compaction),
            retention=self._retention,
        )
        self.cancelling = Cancelling(parts, runner=self._runner)
        self._repeats = Repeats(parts)
        self.conversations = Conversations(
            parts,
            binder=self._binder,
            placer=placer,
            planner=planner,
            runner=self._runner,
            retention=self._retention,
        )
        self._openings = Openings(
            parts,
            planner=planner,
            conversations=self.conversations,
            repeats=self._repeats,
            quotas=self.quotas,
        )
        self._forks = Forks(
            parts, binder=self._binder, placer=placer, retention=self._retention, quotas=self.quotas
        )
        self._steering = Steering(
            parts,
            binder=self._binder,
            retention=self._retention,
            policies=self._policies,
            quotas=self.quotas,
        )
        self._inspector = Inspector(parts, policies=self._policies)
        self._listing = Listing(parts, inspector=self._inspector)
        self._followers = Followers(
            parts, runner=self._runner, retention=self._retention, inspector=self._inspector
        )
        self._beginnings = Beginnings(
            parts, binder=self._binder, runner=self._runner, repeats=self._repeats
        )
        self._chats = Chats(parts, beginnings=self._beginnings)
        self._housekeeping = Housekeeping(
            parts,
            placer=placer,
            runner=self._runner,
            retention=self._retention,
            repeats=self._repeats,
            conversations=self.conversations,
        )
        self._replica = Replica(parts, retention=self._retention)
        self._reaper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Mark what dead servers left running as failed; start the heartbeat and the reaper."""
        await self._replica.start()
        self._reaper = asyncio.create_task(self._housekeeping.run())
        self.quotas.start(self._runner.begun_ids)

    async def drain(self) -> None:
        """Refuse new turns, wait for those that run, then cancel them with what they have."""
        self._compaction.drain()
        await self._runner.drain()

    async def stop(self) -> None:
        """End every task. The store and the engine are the caller's to stop."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        await self.quotas.stop()
        await self._runner.stop()
        await self._compaction.stop()
        await self._replica.stop()

    @property
    def database_failure(self) -> str | None:
        """Why turns can't be stored just now; None: they can, as far as is known."""
        return self._replica.database_failure

    async def bind(
        self,
        caller: Caller,
        request: TurnRequest,
        *,
        attachment: AttachmentId | None,
        lane: str | None,
    ) -> BoundTurn:
        """Bind the turn to a session at receipt and queue for its turn lock."""
        return await self._beginnings.bind(caller, request, attachment=attachment, lane=lane)

    async def bind_once(
        self,
        caller: Caller,
        request: TurnRequest,
        key: str,
        *,
        attachment: AttachmentId | None,
        lane: str | None,
    ) -> BoundTurn | str:
        """As `bind`, or the response id of an earlier request with the same key."""
        return await self._beginnings.bind_once(
            caller, request, key, attachment=attachment, lane=lane
        )

    async def bind_chat(self, caller: Caller, request: TurnRequest) -> BoundTurn:
        """As `bind`, for a client that resends its whole history; continues its stored prefix."""
        return await self._chats.bind(caller, request)

    async def run(self, bound: BoundTurn) -> Turn:
        """Wait for the turn lock, store the turn (commit 1), submit it to the engine."""
        return await self._beginnings.run(bound)

    async def drop(self, bound: BoundTurn) -> None:
        """Release the place of a turn that did not run."""
        await self._beginnings.drop(bound)

    async def cancel(
        self,
        caller: Caller,
        response_id: str | None,
        *,
        attachment: AttachmentId | None,
        keep: bool,
    ) -> None:
        """Cancel a turn, or (None) those of the attachment. See `Cancelling.cancel`."""
        await self.cancelling.cancel(caller, response_id, attachment=attachment, keep=keep)

    def attach(self, attachment: AttachmentId) -> None:
        """A socket was opened."""
        self._retention.attach(attachment)

    def leave(self, attachment: AttachmentId) -> None:
        """A socket was closed: cancel, roll back and release the sessions that only it held."""
        self._housekeeping.leave(attachment)

    async def detach(self, attachment: AttachmentId) -> None:
        """The same, if it was not done, and what takes time: its turns end and are stored."""
        await self._housekeeping.detach(attachment)

    def census(self) -> Census:
        """Counts of what is kept in memory."""
        return self._housekeeping.census()

    async def hold(self, session_id: str, seconds: float) -> None:
        """Keep an unattached session's KV for so long from now."""
        live = self._parts.sessions.get(session_id)
        if live is not None:
            self._retention.hold(live, seconds)

    async def list_sessions(
        self, caller: Caller, limit: int, after: str | None, wanted: SessionFilter = _OWN
    ) -> SessionPage:
        """Sessions, latest activity first; `after` is the id of the last seen."""
        return await self._listing.page(caller, limit, after, wanted)

    async def get_session(
        self, caller: Caller, session_id: str, *, include_page_table: bool = False
    ) -> SessionView:
        """One session with its turns and what it holds."""
        return await self._inspector.session(
            caller, session_id, include_page_table=include_page_table
        )

    async def fork_session(
        self, caller: Caller, session_id: str, response_id: str | None = None
    ) -> SessionView:
        """A new session that goes on from a response of this one; None: from its last."""
        live = await self._forks.fork(caller, session_id, response_id)
        return await self._inspector.session(caller, live.id, include_page_table=False)

    async def reset_session(
        self, caller: Caller, session_id: str, response_id: str | None = None
    ) -> SessionView:
        """Go back to a response; None: to the instructions alone. Busy: `turn_in_progress`."""
        if response_id is None:
            await self.conversations.reset(caller, session_id)
        else:
            await self.conversations.rewind(caller, session_id, response_id)
        return await self._inspector.session(caller, session_id, include_page_table=False)

    async def set_policy(
        self, caller: Caller, session_id: str, choice: PolicyChoice | None
    ) -> SessionView:
        """Replace the session's own context policy from the next turn on; None: it has none."""
        await self._steering.set_policy(caller, session_id, choice)
        return await self._inspector.session(caller, session_id, include_page_table=False)

    async def update_session(  # noqa: PLR0913 -- all that may be said of a session
        self,
        caller: Caller,
        session_id: str,
        *,
        policy: PolicyChoice | Unset | None = UNSET,
        retention: RetentionName | None = None,
        ttl_s: float | None = None,
        priority: Priority | None = None,
    ) -> SessionView:
        """Change what is given, from the next turn on; with policy None it has none of its own."""
        await self._steering.update(
            caller,
            session_id,
            policy=policy,
            retention=retention,
            ttl_s=ttl_s,
            priority=priority,
        )
        return await self._inspector.session(caller, session_id, include_page_table=False)

    async def park_session(self, caller: Caller, session_id: str) -> SessionView:
        """Move the KV to the tiers below the device; none: release it. Busy: `turn_in_progress`."""
        await self._steering.park(caller, session_id)
        return await self._inspector.session(caller, session_id, include_page_table=False)

    async def set_user_policy(
        self, caller: Caller, user_id: str, choice: PolicyChoice | None
    ) -> None:
        """Replace a user's context policy; one's own, or an admin anybody's."""
        await self._policies.set_of_user(caller, user_id, choice)

    async def close_session(self, caller: Caller, session_id: str) -> None:
        """Cancel the running turn, free all KV, close the session."""
        await self.conversations.close(caller, session_id)

    async def create_conversation(
        self,
        caller: Caller,
        items: tuple[InputItem, ...],
        metadata: dict[str, str],
        *,
        name: str | None = None,
        key: str | None = None,
    ) -> ConversationView:
        """Open a session with items in its context and nothing computed.

        An open one of the same name, or opened by the same request with this idempotency key, is
        returned unchanged.
        """
        return await self._openings.create(caller, items, metadata, name=name, key=key)

    async def get_response(self, caller: Caller, response_id: str) -> ResponseView:
        """A stored turn in any status."""
        return await self._inspector.response(caller, response_id)

    async def follow(
        self, caller: Caller, response_id: str, *, attachment: AttachmentId | None = None
    ) -> Replay:
        """The past and future events of a turn, from the oldest kept one."""
        return await self._followers.follow(caller, response_id, attachment=attachment)

    async def input_items(
        self,
        caller: Caller,
        response_id: str,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Literal["asc", "desc"] = "desc",
    ) -> ItemPage:
        """The messages that came with the turn."""
        return await self._inspector.input_items(
            caller, response_id, limit=limit, after=after, order=order
        )

    async def delete_response(self, caller: Caller, response_id: str) -> None:
        """Delete the id. Its messages stay in the contexts that were built on it."""
        await self._followers.forget(caller, response_id)
