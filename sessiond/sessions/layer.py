"""Wires the session layer, and starts and stops its tasks. One asyncio loop."""

from collections.abc import Callable
from functools import cached_property

from engine.ipc.client import EngineClient
from policies.registry import ContextPolicyRegistry
from sessiond.domain import PolicyChoice
from sessiond.sessions.bind import TurnBinder
from sessiond.sessions.compaction import SummaryService
from sessiond.sessions.context_policies import ContextPolicies, MakePolicy
from sessiond.sessions.conversations import Conversations
from sessiond.sessions.demand import DrainRate, PoolDemand
from sessiond.sessions.engine_sync import EngineSync
from sessiond.sessions.expiry_clock import ExpiryClock
from sessiond.sessions.follow import Followers
from sessiond.sessions.hooks import Hooks
from sessiond.sessions.housekeeping import Housekeeping
from sessiond.sessions.idempotency import IdempotentRequests
from sessiond.sessions.inspection import Inspector
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.openings import Openings
from sessiond.sessions.pending_endings import PendingEndings
from sessiond.sessions.plan import Planner
from sessiond.sessions.quotas import Quotas, ResidencyMeter
from sessiond.sessions.replica import Replica, lease_s
from sessiond.sessions.retention import Retention
from sessiond.sessions.run import SummaryLookAhead, TurnRunner
from sessiond.sessions.session_settings import SessionSettings
from sessiond.sessions.start import TurnStarter
from sessiond.sessions.stream import TurnStreamer
from sessiond.sessions.summary_writer import SummaryWriter
from sessiond.sessions.transcript import TextFormat, Transcript
from sessiond.store.store import Store

_NO_POLICY = PolicyChoice(type="none")
_NO_HOOKS = Hooks()
_BUILT_IN = ContextPolicyRegistry()


class SessionLayer:
    """Makes each collaborator once, of what it uses. Those that use it hold it, not the layer.

    `clock` returns unix seconds for events and rows; it may jump. `ticks` returns monotonic seconds
    for durations (None: the clock never jumps). `new_id("resp")` returns a unique `resp_…`.
    """

    def __init__(  # noqa: PLR0913 -- what the wiring needs, passed by keyword
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
        self._store = store
        self._engine = engine
        self._limits = limits
        self._clock = clock
        self._ticks = ticks or clock
        self._new_id = new_id
        self._new_seed = new_seed
        self._hooks = hooks
        self._default_policy = default_policy
        self._make_policy = make_policy
        self._transcript = Transcript(text, ignore_eos=ignore_eos)

    async def start(self) -> None:
        """Mark running turns of dead servers as failed; start the heartbeat and the reaper.

        Raises:
            StoreError: the database can't be used.
        """
        await self.replica.start()
        self.housekeeping.start()
        self.quotas.start(self.runner.begun_ids)

    async def drain(self) -> None:
        """Refuse new turns, wait for running ones, then cancel them and keep their text."""
        self.compaction.drain()
        await self.runner.drain()

    async def stop(self) -> None:
        """Stop every task. The caller stops the store and the engine."""
        await self.housekeeping.stop()
        await self.quotas.stop()
        await self.runner.stop()
        await self.compaction.stop()
        await self.replica.stop()

    # --- turns -----------------------------------------------------------------------------------

    @cached_property
    def turns(self) -> TurnBinder:
        """Binds turns and runs them."""
        return TurnBinder(
            engine=self._engine,
            store=self._store,
            sessions=self.live,
            retention=self.retention,
            runner=self.runner,
            idempotency=self.idempotency,
            ticks=self._ticks,
            new_id=self._new_id,
        )

    @cached_property
    def runner(self) -> TurnRunner:
        """The turns that are bound and run."""
        return TurnRunner(
            limits=self._limits,
            clock=self._clock,
            ticks=self._ticks,
            drain_rate=self.drain_rate,
            demand=self.demand,
            hooks=self._hooks,
            starter=self._starter,
            streamer=self._streamer,
            look_ahead=SummaryLookAhead(planner=self._planner, compaction=self.compaction),
            retention=self.retention,
        )

    @cached_property
    def _starter(self) -> TurnStarter:
        return TurnStarter(
            engine=self._engine,
            store=self._store,
            sessions=self.live,
            pending_endings=self.pending_endings,
            limits=self._limits,
            clock=self._clock,
            ticks=self._ticks,
            new_id=self._new_id,
            demand=self.demand,
            planner=self._planner,
            engine_sync=self._engine_sync,
            transcript=self._transcript,
            quotas=self.quotas,
        )

    @cached_property
    def _streamer(self) -> TurnStreamer:
        return TurnStreamer(
            engine=self._engine,
            store=self._store,
            pending_endings=self.pending_endings,
            limits=self._limits,
            clock=self._clock,
            ticks=self._ticks,
            demand=self.demand,
            hooks=self._hooks,
            retention=self.retention,
        )

    @cached_property
    def _planner(self) -> Planner:
        return Planner(
            engine=self._engine,
            sessions=self.live,
            limits=self._limits,
            new_id=self._new_id,
            new_seed=self._new_seed,
            transcript=self._transcript,
            policies=self.policies,
            quotas=self.quotas,
            summaries=self.compaction,
            demand=self.demand,
        )

    @cached_property
    def compaction(self) -> SummaryService:
        """The summaries that are being written."""
        writer = SummaryWriter(
            engine=self._engine,
            store=self._store,
            clock=self._clock,
            new_id=self._new_id,
            transcript=self._transcript,
            quotas=self.quotas,
        )
        return SummaryService(store=self._store, limits=self._limits, writer=writer)

    @cached_property
    def followers(self) -> Followers:
        """Turns followed or cancelled by requests that did not start them."""
        return Followers(
            store=self._store,
            sessions=self.live,
            clock=self._clock,
            cancel_timeout_s=self._limits.cancel_timeout_s,
            runner=self.runner,
            retention=self.retention,
            inspector=self.inspector,
        )

    @cached_property
    def idempotency(self) -> IdempotentRequests:
        """Requests that are repeated with a key."""
        return IdempotentRequests(
            store=self._store,
            ttl_s=self._limits.idempotency_ttl_s,
            clock=self._clock,
            ticks=self._ticks,
        )

    @cached_property
    def drain_rate(self) -> DrainRate:
        """How fast turns end, for `Retry-After`."""
        return DrainRate(self._ticks)

    @cached_property
    def demand(self) -> PoolDemand:
        """KV demand of running and waiting turns."""
        return PoolDemand(self._limits, self.drain_rate)

    @cached_property
    def pending_endings(self) -> PendingEndings:
        """Ends of turns that the database has not taken yet."""
        return PendingEndings(self._store)

    # --- sessions --------------------------------------------------------------------------------

    @cached_property
    def live(self) -> LiveSessions:
        """The sessions in memory."""
        return LiveSessions(
            store=self._store,
            engine=self._engine,
            clock=self._clock,
            dead_by=ExpiryClock(self._clock, self._ticks, settle_s=lease_s(self._limits)),
            new_id=self._new_id,
        )

    @cached_property
    def retention(self) -> Retention:
        """What keeps KV and frees it."""
        return Retention(
            engine=self._engine,
            sessions=self.live,
            limits=self._limits,
            ticks=self._ticks,
            on_released=self.compaction.cancel,
        )

    @cached_property
    def conversations(self) -> Conversations:
        """Sessions extended, reset and closed without a turn."""
        return Conversations(
            engine=self._engine,
            store=self._store,
            sessions=self.live,
            clock=self._clock,
            new_id=self._new_id,
            engine_sync=self._engine_sync,
            inspector=self.inspector,
            planner=self._planner,
            runner=self.runner,
            retention=self.retention,
        )

    @cached_property
    def openings(self) -> Openings:
        """Sessions opened without a turn."""
        return Openings(
            engine=self._engine,
            store=self._store,
            sessions=self.live,
            planner=self._planner,
            engine_sync=self._engine_sync,
            conversations=self.conversations,
            inspector=self.inspector,
            retention=self.retention,
            idempotency=self.idempotency,
            quotas=self.quotas,
            clock=self._clock,
            new_id=self._new_id,
        )

    @cached_property
    def settings(self) -> SessionSettings:
        """Session settings outside of turns."""
        return SessionSettings(
            store=self._store,
            sessions=self.live,
            inspector=self.inspector,
            retention=self.retention,
            policies=self.policies,
            quotas=self.quotas,
        )

    @cached_property
    def policies(self) -> ContextPolicies:
        """The context policies of turns, sessions and users."""
        return ContextPolicies(
            engine=self._engine,
            store=self._store,
            clock=self._clock,
            default=self._default_policy,
            make=self._make_policy,
        )

    @cached_property
    def inspector(self) -> Inspector:
        """Sessions and turns as clients and operators see them."""
        return Inspector(
            engine=self._engine,
            store=self._store,
            sessions=self.live,
            ask_timeout_s=self._limits.ask_timeout_s,
            policies=self.policies,
        )

    @cached_property
    def _engine_sync(self) -> EngineSync:
        return EngineSync(
            engine=self._engine,
            store=self._store,
            sessions=self.live,
            ready_timeout_s=self._limits.engine_ready_timeout_s,
        )

    # --- the server ------------------------------------------------------------------------------

    @cached_property
    def quotas(self) -> Quotas:
        """Quotas of users."""
        residency = ResidencyMeter(
            engine=self._engine,
            store=self._store,
            sessions=self.live,
            limits=self._limits,
            ticks=self._ticks,
        )
        return Quotas(
            store=self._store,
            limits=self._limits,
            clock=self._clock,
            ticks=self._ticks,
            drain_rate=self.drain_rate,
            residency=residency,
            close_idle_fork=lambda caller, base: self.conversations.close_idle_fork(
                caller, keep=base
            ),
            on_refused=self._hooks.quota_refused,
        )

    @cached_property
    def housekeeping(self) -> Housekeeping:
        """Cleanup after disconnects and on a timer."""
        return Housekeeping(
            store=self._store,
            sessions=self.live,
            limits=self._limits,
            clock=self._clock,
            ticks=self._ticks,
            engine_sync=self._engine_sync,
            runner=self.runner,
            retention=self.retention,
            idempotency=self.idempotency,
            conversations=self.conversations,
        )

    @cached_property
    def replica(self) -> Replica:
        """The lease of this server."""
        return Replica(
            store=self._store,
            sessions=self.live,
            pending_endings=self.pending_endings,
            limits=self._limits,
            clock=self._clock,
            ticks=self._ticks,
            retention=self.retention,
        )
