"""Shared dependencies of the session service. A value; owns nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.client import EngineClient
from sessiond.sessions.demand import Demand
from sessiond.sessions.drain_rate import DrainRate
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.unstored import UnstoredEndings
from sessiond.sessions.watchers import Watchers
from sessiond.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """`clock` returns unix seconds for events and rows; it may jump.

    `ticks` returns monotonic seconds for durations. `new_id("resp")` returns a unique `resp_…`.
    `watchers`: hooks called when a turn ends or is refused.
    """

    engine: EngineClient
    store: Store
    sessions: LiveSessions
    unstored: UnstoredEndings
    limits: ServiceLimits
    clock: Callable[[], float]
    ticks: Callable[[], float]
    new_id: Callable[[str], str]
    new_seed: Callable[[], int]
    drain_rate: DrainRate
    demand: Demand
    watchers: Watchers
