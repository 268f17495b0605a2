"""The gateway over the real service, store and engine loop; only the model is a fake."""

import asyncio
import itertools
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from engine.config import EngineConfig
from engine.core.loop import EngineLoop
from engine.ipc.in_process import InProcessEngine
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
from sessiond.sessions.service import ServiceLimits, SessionService
from sessiond.store.store import Store
from tests.api.scripted import INFO
from tests.api.serving import Served, serving
from tests.databases import PATIENCE_S
from tests.fakes.fake_model import Draw, FakeModel, FakeText

MODEL = "fake"
NO_POLICY = PolicyChoice(type="none")
NUM_BLOCKS = 256
ENGINE_CONFIG = {"max_num_seqs": 8, "max_num_batched_tokens": 64}


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
    model: FakeModel
    engine: InProcessEngine
    store: Store

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
async def real_stack(
    url,
    *,
    draw=None,
    service_limits=None,
    max_model_len=INFO.max_model_len,
    policy=NO_POLICY,
    auth=None,
    keys=False,
    keys_every_s=0.02,
    num_blocks=NUM_BLOCKS,
    tiers=None,
    text=None,
    engine_config=None,
    spans=None,
    **limits,
):
    """Serve until the block ends; then everything must have been given back.

    `keys`: callers have to show one; `running.served.gateway.accounts` makes them.
    `text`: the chat format; None: that of bytes.
    `spans`: a `TurnSpans` that is told of every turn.
    `tiers`: made of the model's blocks; None: there are none.
    `engine_config`: fields that are not as in `ENGINE_CONFIG`.
    """
    config, info = described(num_blocks, max_model_len, engine_config)
    model = FakeModel(num_blocks=num_blocks, block_size=16, draw=draw or Draw(stop_every=8))
    engine = InProcessEngine(lambda emit: loop_of(model, emit, config, info, tiers))
    store = Store(url, timeout_s=PATIENCE_S)
    metrics = Metrics()
    numbers = itertools.count(1)

    def new_id(prefix):
        return f"{prefix}_{next(numbers)}"

    service = SessionService(
        store=store,
        engine=engine,
        text=text or ByteFormat(),
        limits=service_limits or ServiceLimits(http_hold_s=0.05, reap_every_s=0.02),
        clock=time.time,
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
        at_work=service.cancelling.keys_at_work,
        on_revoked=service.cancelling.end_work_of_key,
        every_s=keys_every_s,
    )
    accounts = Accounts(store.accounts, clock=time.time, new_id=new_id, on_revoked=key_watch.revoke)
    gateway = Gateway(
        service=service,
        engine=engine,
        auth=auth or (KeyAuth(store.accounts) if keys else NoAuth()),
        limits=GatewayLimits(**limits),
        connections=Connections(),
        metrics=metrics,
        clock=time.time,
        new_id=new_id,
        accounts=accounts,
        audit_watch=AuditWatch(engine),
        key_watch=key_watch,
    )
    await engine.start()
    try:
        async with serving(gateway, traced=spans is not None) as served:
            yield Stack(served, model, engine, store)
    finally:
        await store.close()
        await engine.stop()


def described(num_blocks, max_model_len, engine_config=None):
    """The config and the words of an engine of so many blocks."""
    config = EngineConfig(model=MODEL, **(ENGINE_CONFIG | (engine_config or {})))
    return config, msgspec.structs.replace(
        INFO, total_blocks=num_blocks, max_model_len=max_model_len
    )


def loop_of(model, emit, config, info, tiers):
    loop = EngineLoop(
        config=config,
        num_blocks=info.total_blocks,
        kv_bytes_per_block=info.kv_bytes_per_token * 16,
        max_model_len=info.max_model_len,
        fingerprint=info.fingerprint,
        runner=model,
        tiers=tiers(model) if tiers else None,
        tokenizer=FakeText(),
        emit=emit,
        clock=time.monotonic,
    )
    # a fake computes a block in no time: beside a busy disk none would pay to be brought back
    loop._kv_transfer._recompute_s = lambda: 1.0
    return loop, info
