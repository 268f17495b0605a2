"""Shared dependencies of the session service. A value; owns nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.ipc.client import EngineClient
from sessiond.sessions.demand import DrainRate, PoolDemand
from sessiond.sessions.hooks import Hooks
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.pending_endings import PendingEndings
from sessiond.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDeps:
    """`clock` returns unix seconds for events and rows; it may jump.

    `ticks` returns monotonic seconds for durations. `new_id("resp")` returns a unique `resp_…`.
    """

    engine: EngineClient
    store: Store
    sessions: LiveSessions
    pending_endings: PendingEndings
    limits: ServiceLimits
    clock: Callable[[], float]
    ticks: Callable[[], float]
    new_id: Callable[[str], str]
    new_seed: Callable[[], int]
    drain_rate: DrainRate
    demand: PoolDemand
    hooks: Hooks
