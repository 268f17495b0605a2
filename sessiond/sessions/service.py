"""Facade of conversations and their turns. One asyncio loop; owns the live sessions."""

import asyncio
from collections.abc import Callable
from typing import Literal

from engine.ipc.client import EngineClient
from policies.registry import ContextPolicyRegistry
from sessiond.domain import (
    UNSET,
    AttachmentId,
    Caller,
    ConversationResource,
    InputItem,
    ItemPage,
    PolicyChoice,
    ResponseView,
    ServiceStats,
    SessionFilter,
    SessionPage,
    SessionView,
    TurnRequest,
    Unset,
)
from sessiond.sessions.bind import Binder, BoundTurn
from sessiond.sessions.compaction import SummaryService
from sessiond.sessions.context_policies import ContextPolicies, MakePolicy
from sessiond.sessions.conversations import Conversations, Openings
from sessiond.sessions.demand import DrainRate, PoolDemand
from sessiond.sessions.engine_sync import EngineSync
from sessiond.sessions.event_log import LogReplay
from sessiond.sessions.expiry_clock import ExpiryClock
from sessiond.sessions.follow import Cancelling, Followers
from sessiond.sessions.forks import Forks
from sessiond.sessions.hooks import Hooks
from sessiond.sessions.housekeeping import Housekeeping
from sessiond.sessions.idempotency import IdempotentRequests
from sessiond.sessions.inspection import Inspector, Listing
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.parts import SessionDeps
from sessiond.sessions.pending_endings import PendingEndings
from sessiond.sessions.plan import Planner
from sessiond.sessions.quotas import Quotas
from sessiond.sessions.replica import Replica, lease_s
from sessiond.sessions.retention import Retention
from sessiond.sessions.run import SummaryLookAhead, TurnRunner
from sessiond.sessions.session_settings import SessionSettings
from sessiond.sessions.start import TurnStarter
from sessiond.sessions.submit import Chats, TurnSubmitter
from sessiond.sessions.transcript import TextFormat, Transcript
from sessiond.sessions.turn import Turn
from sessiond.store.records import Priority
from sessiond.store.records import Retention as RetentionName
from sessiond.store.store import Store

_NO_POLICY = PolicyChoice(type="none")
_OWN = SessionFilter()
_NO_HOOKS = Hooks()
_BUILT_IN = ContextPolicyRegistry()

__all__ = ["BoundTurn", "ServiceLimits", "SessionService", "Turn"]


class SessionService:
    """Binds, stores, runs and ends turns. Errors for the client are raised as `RequestError`.

    `clock` returns unix seconds, `ticks` monotonic ones (None: the clock never jumps);
    `new_id("resp")` returns a unique `resp_…`.
    """

    def __init__(  # noqa: PLR0913 -- the whole wiring, passed by keyword
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
        hooks: Hooks = _NO_HOOKS,
        ignore_eos: bool = False,
        default_policy: PolicyChoice = _NO_POLICY,
        make_policy: MakePolicy = _BUILT_IN.make,
    ) -> None:
        ticks = ticks or clock
        self.drain_rate = DrainRate(ticks)
        self.demand = PoolDemand(limits, self.drain_rate)
        deps = SessionDeps(
            engine=engine,
            store=store,
            sessions=LiveSessions(
                store, clock, ExpiryClock(clock, ticks, settle_s=lease_s(limits))
            ),
            pending_endings=PendingEndings(store),
            limits=limits,
            clock=clock,
            ticks=ticks,
            new_id=new_id,
            new_seed=new_seed,
            drain_rate=self.drain_rate,
            demand=self.demand,
            hooks=hooks,
        )
        transcript = Transcript(text, ignore_eos=ignore_eos)
        self.quotas = Quotas(
            deps,
            close_idle_fork=lambda caller, base: self.conversations.close_idle_fork(
                caller, keep=base
            ),
            on_refused=hooks.quota_refused,
        )
        self._policies = ContextPolicies(deps, default=default_policy, make=make_policy)
        self._compaction = SummaryService(deps, transcript=transcript)
        planner = Planner(
            deps,
            transcript=transcript,
            policies=self._policies,
            quotas=self.quotas,
            summaries=self._compaction,
        )
        engine_sync = EngineSync(deps)
        starter = TurnStarter(
            deps,
            planner=planner,
            engine_sync=engine_sync,
            transcript=transcript,
            quotas=self.quotas,
        )
        self._deps = deps
        self._retention = Retention(deps, on_released=self._compaction.cancel)
        self._binder = Binder(deps, retention=self._retention)
        self._runner = TurnRunner(
            deps,
            starter=starter,
            look_ahead=SummaryLookAhead(planner=planner, compaction=self._compaction),
            retention=self._retention,
        )
        self.cancelling = Cancelling(deps, runner=self._runner)
        self._idempotency = IdempotentRequests(deps)
        self.conversations = Conversations(
            deps,
            binder=self._binder,
            engine_sync=engine_sync,
            planner=planner,
            runner=self._runner,
            retention=self._retention,
        )
        self._openings = Openings(
            deps,
            planner=planner,
            conversations=self.conversations,
            idempotency=self._idempotency,
            quotas=self.quotas,
        )
        self._forks = Forks(
            deps,
            binder=self._binder,
            engine_sync=engine_sync,
            retention=self._retention,
            quotas=self.quotas,
        )
        self._session_settings = SessionSettings(
            deps,
            binder=self._binder,
            retention=self._retention,
            policies=self._policies,
            quotas=self.quotas,
        )
        self._inspector = Inspector(deps, policies=self._policies)
        self._listing = Listing(deps, inspector=self._inspector)
        self._followers = Followers(
            deps, runner=self._runner, retention=self._retention, inspector=self._inspector
        )
        self._submitter = TurnSubmitter(
            deps, binder=self._binder, runner=self._runner, idempotency=self._idempotency
        )
        self._chats = Chats(deps, submitter=self._submitter)
        self._housekeeping = Housekeeping(
            deps,
            engine_sync=engine_sync,
            runner=self._runner,
            retention=self._retention,
            idempotency=self._idempotency,
            conversations=self.conversations,
        )
        self._replica = Replica(deps, retention=self._retention)
        self._reaper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Mark running turns of dead servers as failed; start the heartbeat and the reaper."""
        await self._replica.start()
        self._reaper = asyncio.create_task(self._housekeeping.run())
        self.quotas.start(self._runner.begun_ids)

    async def drain(self) -> None:
        """Refuse new turns, wait for running ones, then cancel them and keep their text."""
        self._compaction.drain()
        await self._runner.drain()

    async def stop(self) -> None:
        """Stop every task. The caller stops the store and the engine."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        await self.quotas.stop()
        await self._runner.stop()
        await self._compaction.stop()
        await self._replica.stop()

    @property
    def database_failure(self) -> str | None:
        """Why turns can't be stored now; None: no failure is known."""
        return self._replica.database_failure

    # Parts to look at, and to advance by hand where a timer would.

    @property
    def sessions(self) -> LiveSessions:
        """The sessions in memory."""
        return self._deps.sessions

    @property
    def retention(self) -> Retention:
        """What keeps KV and gives it back."""
        return self._retention

    @property
    def replica(self) -> Replica:
        """The lease of this server."""
        return self._replica

    @property
    def runner(self) -> TurnRunner:
        """The turns that are bound and run."""
        return self._runner

    @property
    def housekeeping(self) -> Housekeeping:
        """What the reaper does."""
        return self._housekeeping

    @property
    def compaction(self) -> SummaryService:
        """The summaries that are being written."""
        return self._compaction

    async def bind(
        self,
        caller: Caller,
        request: TurnRequest,
        *,
        attachment: AttachmentId | None,
        lane: str | None,
    ) -> BoundTurn:
        """Bind the turn to a session at receipt and queue for its turn lock."""
        return await self._submitter.bind(caller, request, attachment=attachment, lane=lane)

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
        return await self._submitter.bind_once(
            caller, request, key, attachment=attachment, lane=lane
        )

    async def bind_chat(self, caller: Caller, request: TurnRequest) -> BoundTurn:
        """As `bind`, for a client that resends its whole history; continues its stored prefix."""
        return await self._chats.bind(caller, request)

    async def run(self, bound: BoundTurn) -> Turn:
        """Wait for the turn lock, store the turn (commit 1), submit it to the engine."""
        return await self._submitter.run(bound)

    async def drop(self, bound: BoundTurn) -> None:
        """Drop a bound turn that has not run."""
        await self._submitter.drop(bound)

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
        """Add an open socket."""
        self._retention.attach(attachment)

    def leave(self, attachment: AttachmentId) -> None:
        """Handle a closed socket at once: cancel turns and free KV that no other socket holds."""
        self._housekeeping.leave(attachment)

    async def detach(self, attachment: AttachmentId) -> None:
        """Call `leave` if that was not done; then wait until the socket's turns are stored."""
        await self._housekeeping.detach(attachment)

    def service_stats(self) -> ServiceStats:
        """Counts of sessions, turns and events in memory."""
        return self._housekeeping.service_stats()

    async def keep_alive(self, session_id: str, seconds: float) -> None:
        """Keep an unattached session's KV for `seconds` from now."""
        live = self._deps.sessions.get(session_id)
        if live is not None:
            self._retention.keep_alive(live, seconds)

    async def list_sessions(
        self, caller: Caller, limit: int, after: str | None, wanted: SessionFilter = _OWN
    ) -> SessionPage:
        """Sessions, latest activity first; `after`: the last id of the previous page."""
        return await self._listing.page(caller, limit, after, wanted)

    async def get_session(
        self, caller: Caller, session_id: str, *, include_page_table: bool = False
    ) -> SessionView:
        """One session with its turns and memory use."""
        return await self._inspector.session(
            caller, session_id, include_page_table=include_page_table
        )

    async def fork_session(
        self, caller: Caller, session_id: str, response_id: str | None = None
    ) -> SessionView:
        """Create a session that continues from a response of this one; None: from its last."""
        live = await self._forks.fork(caller, session_id, response_id)
        return await self._inspector.session(caller, live.id, include_page_table=False)

    async def reset_session(
        self, caller: Caller, session_id: str, response_id: str | None = None
    ) -> SessionView:
        """Return to a response; None: to the instructions alone. Busy: `turn_in_progress`."""
        if response_id is None:
            await self.conversations.reset(caller, session_id)
        else:
            await self.conversations.rewind(caller, session_id, response_id)
        return await self._inspector.session(caller, session_id, include_page_table=False)

    async def set_policy(
        self, caller: Caller, session_id: str, choice: PolicyChoice | None
    ) -> SessionView:
        """Replace the session's own context policy from the next turn on; None: remove it."""
        await self._session_settings.set_policy(caller, session_id, choice)
        return await self._inspector.session(caller, session_id, include_page_table=False)

    async def update_session(  # noqa: PLR0913 -- the fields of a session, passed by keyword
        self,
        caller: Caller,
        session_id: str,
        *,
        policy: PolicyChoice | Unset | None = UNSET,
        retention: RetentionName | None = None,
        ttl_s: float | None = None,
        priority: Priority | None = None,
    ) -> SessionView:
        """Change the given fields from the next turn on; policy None: remove the session's own."""
        await self._session_settings.update(
            caller,
            session_id,
            policy=policy,
            retention=retention,
            ttl_s=ttl_s,
            priority=priority,
        )
        return await self._inspector.session(caller, session_id, include_page_table=False)

    async def park_session(self, caller: Caller, session_id: str) -> SessionView:
        """Move KV to the tiers below the device, or free it if none. Busy: `turn_in_progress`."""
        await self._session_settings.park(caller, session_id)
        return await self._inspector.session(caller, session_id, include_page_table=False)

    async def set_user_policy(
        self, caller: Caller, user_id: str, choice: PolicyChoice | None
    ) -> None:
        """Replace the context policy of the caller or, for an admin, of any user."""
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
    ) -> ConversationResource:
        """Open a session with items in its context; the next turn computes them.

        An open session of that name, or of the same request with this idempotency key, is returned
        unchanged.
        """
        return await self._openings.create(caller, items, metadata, name=name, key=key)

    async def get_response(self, caller: Caller, response_id: str) -> ResponseView:
        """A stored turn in any status."""
        return await self._inspector.response(caller, response_id)

    async def follow(
        self, caller: Caller, response_id: str, *, attachment: AttachmentId | None = None
    ) -> LogReplay:
        """Past and future events of a turn, from the oldest kept one."""
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
        """Delete a response's id. Its messages stay in the contexts that continue it."""
        await self._followers.forget(caller, response_id)
