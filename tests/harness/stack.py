"""The gateway over the real service, store and engine loop; only the model is a fake."""

import asyncio
import itertools
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine.ipc.queries import GetAudit, GetStats
from sessiond.accounts import Accounts
from sessiond.api.audit_watch import AuditWatch
from sessiond.api.auth import KeyAuth, NoAuth
from sessiond.api.connections import Connections
from sessiond.api.key_watch import KeyWatch
from sessiond.api.limits import GatewayLimits
from sessiond.api.parts import Gateway
from sessiond.domain import PolicyChoice
from sessiond.observability.metrics import Metrics
from sessiond.sessions.hooks import Hooks
from sessiond.sessions.layer import SessionLayer
from sessiond.sessions.limits import ServiceLimits
from sessiond.store.store import Store
from tests.api.scripted import INFO
from tests.databases import PATIENCE_S
from tests.fakes.fake_model import Draw, FakeText
from tests.harness.engine import Rig
from tests.harness.serving import Served, serving

MODEL = "fake"
NO_POLICY = PolicyChoice(type="none")
NUM_BLOCKS = 256


class ByteFormat:
    """A chat format of bytes: a special per role, the text, the end of turn."""

    stop_ids = (FakeText.STOP,)
    close_ids = (FakeText.STOP, FakeText.NEWLINE)
    generation_prompt = (261,)
    user_start = (259,)

    def open(self, system):
        return () if system is None else self.message("system", system)

    def message(self, role, text):
        start = {"system": 257, "developer": 258, "user": 259, "assistant": 260}[role]
        return (start, *text.encode(), *self.close_ids)


@dataclass
class Stack:
    """A served stack with the handles that tests pull."""

    served: Served
    rig: Rig
    store: Store

    @property
    def model(self):
        return self.rig.model

    @property
    def engine(self):
        return self.rig.engine

    async def stats(self):
        return await self.engine.ask(GetStats())

    async def idle(self):
        """Wait until no turn is there and no session holds a block; nothing leaked."""
        async with asyncio.timeout(60):
            stats = await self.stats()
            while stats.active_blocks or stats.running or stats.waiting:
                await asyncio.sleep(0.005)
                stats = await self.stats()
        assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
        audit = await self.engine.ask(GetAudit())
        assert (audit.ok, audit.violations) == (True, [])


@asynccontextmanager
async def app_on(
    engine,
    store,
    *,
    service_limits,
    policy=NO_POLICY,
    auth=None,
    keys=False,
    keys_every_s=0.02,
    text=None,
    spans=None,
    clock=time.time,
    ticks=None,
    new_id=None,
    **limits,
):
    """Serve the service and the gateway on an engine and a store, which both end with the block.

    `keys`: callers have to show one; `served.gateway.accounts` makes them.
    `text`: the chat format; None: that of bytes.
    `spans`: a `TurnSpans` that hears of every turn.
    `clock`, `ticks`, `new_id`: as of `SessionLayer`; ids are counted if there is no `new_id`.
    `limits`: of `GatewayLimits`.
    """
    metrics, numbers = Metrics(), itertools.count(1)
    new_id = new_id or (lambda prefix: f"{prefix}_{next(numbers)}")
    service = SessionLayer(
        store=store,
        engine=engine,
        text=text or ByteFormat(),
        limits=service_limits,
        clock=clock,
        ticks=ticks,
        new_id=new_id,
        new_seed=lambda: 7,
        hooks=Hooks(
            turn_ended=metrics.turn_ended,
            degraded=metrics.degraded,
            quota_refused=metrics.quota_refused,
            turn_reported=spans.turn_reported if spans else None,
        ),
        default_policy=policy,
    )
    key_watch = KeyWatch(
        store.accounts.unusable if keys else None,
        at_work=service.followers.keys_at_work,
        on_revoked=service.followers.end_work_of_key,
        every_s=keys_every_s,
    )
    gateway = Gateway(
        sessions=service,
        engine=engine,
        auth=auth or (KeyAuth(store.accounts) if keys else NoAuth()),
        limits=GatewayLimits(**limits),
        connections=Connections(),
        metrics=metrics,
        clock=clock,
        new_id=new_id,
        accounts=Accounts(store.accounts, clock=clock, new_id=new_id, on_revoked=key_watch.revoke),
        audit_watch=AuditWatch(engine),
        key_watch=key_watch,
    )
    await engine.start()
    try:
        async with serving(gateway, traced=spans is not None) as served:
            yield served
    finally:
        await store.close()
        await engine.stop()


@asynccontextmanager
async def real_stack(
    url,
    *,
    draw=None,
    service_limits=None,
    max_model_len=INFO.max_model_len,
    num_blocks=NUM_BLOCKS,
    tiers=None,
    engine_config=None,
    **options,
):
    """Serve until the block ends; then everything must have been given back.

    `tiers`: made of the model's blocks; None: there are none.
    `engine_config`: of an `EngineConfig`, where it is not the harness's.
    `options`: of `app_on`.
    """
    rig = Rig(
        num_blocks,
        draw=draw or Draw(stop_every=8),
        info=INFO,
        max_model_len=max_model_len,
        tiers=tiers,
        **{"max_num_seqs": 8, **(engine_config or {})},
    )
    store = Store(url, timeout_s=PATIENCE_S)
    service_limits = service_limits or ServiceLimits(http_hold_s=0.05, reap_every_s=0.02)
    async with app_on(rig.engine, store, service_limits=service_limits, **options) as served:
        yield Stack(served, rig, store)
