"""What every part of the session service is built on. A value; owns nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.client import EngineClient
from sessiond.facts import Rung
from sessiond.sessions.demand import Demand
from sessiond.sessions.drain_rate import DrainRate
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSessions
from sessiond.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """`clock` gives unix seconds, for what is told and stored; it may jump.

    `ticks` gives monotonic seconds, for how long something takes. `new_id("resp")` gives `resp_…`,
    never the same twice. `on_degraded` is called with each step of the ladder that a turn meets.
    """

    engine: EngineClient
    store: Store
    sessions: LiveSessions
    limits: ServiceLimits
    clock: Callable[[], float]
    ticks: Callable[[], float]
    new_id: Callable[[str], str]
    new_seed: Callable[[], int]
    drain_rate: DrainRate
    demand: Demand
    on_degraded: Callable[[Rung], None]
