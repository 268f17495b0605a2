"""The served stack of a run: all is real but the model and the clock."""

import secrets
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.ipc.worker_client import Backoff, WorkerEngine
from sessiond.sessions.limits import ServiceLimits
from sessiond.store.store import Store
from tests.chaos.engine import config, orders_of
from tests.chaos.orders import Orders
from tests.harness.serving import Served
from tests.harness.stack import app_on

DB_TIMEOUT_S = 2.0
HEARTBEAT_S = 0.05
_PINGS = {"ping_interval_s": 0.25, "ping_timeout_s": 4.0}  # of one loop with all the clients


class JumpingClock:
    """Unix seconds, as far as it was not put forward or back."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosStack:
    """The running parts, and what faults are done to."""

    served: Served
    engine: WorkerEngine
    store: Store
    clock: JumpingClock
    orders: Orders
    folder: Path
    url: str


@asynccontextmanager
async def chaos_stack(url: str, folder: Path, step_timeout_s: float):
    """Serve until the block ends."""
    settings = config(folder)
    engine = WorkerEngine(
        settings,
        backoff=Backoff(first_s=0.02, most_s=0.2),
        step_timeout_s=step_timeout_s,
        loop_factory="tests.chaos.engine:build",
    )
    store, clock = Store(url, timeout_s=DB_TIMEOUT_S), JumpingClock()
    app = app_on(
        engine,
        store,
        service_limits=ServiceLimits(
            http_hold_s=0.1, reap_every_s=0.05, heartbeat_s=0.5, residency_every_s=0.5
        ),
        clock=clock,
        ticks=time.monotonic,
        new_id=lambda prefix: f"{prefix}_{secrets.token_hex(8)}",
        heartbeat_s=HEARTBEAT_S,
        **_PINGS,
    )
    async with app as served:
        yield ChaosStack(
            served=served,
            engine=engine,
            store=store,
            clock=clock,
            orders=orders_of(settings),
            folder=folder,
            url=url,
        )
