"""What every part of the session service is built on. A value; owns nothing."""

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
    """`clock` gives unix seconds, for what is told and stored; it may jump.

    `ticks` gives monotonic seconds, for how long something takes. `new_id("resp")` gives `resp_…`,
    never the same twice. `watchers` are told of what ends, and of what is refused.
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
