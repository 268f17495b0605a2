"""The soaks: on the engine alone, and on the whole stack over sockets. Only the model is a fake."""

import asyncio
import collections
import contextlib
import random

from engine.inprocess import InProcessEngine
from engine.questions import GetAudit, GetStats
from engine.tiers.mover import ThreadMover
from engine.tiers.tiers import Tiers
from sessiond.sessions.service import ServiceLimits
from sessiond.store.database import READERS
from tests.fakes.fake_model import Draw, FakeModel
from tests.gateway.real_stack import described, loop_of, real_stack
from tests.soaks import clients, engine_clients
from tests.soaks.curve import Curve, sample, traced
from tests.tiers.support import host_tier

SAMPLES = 40
_BLOCKS = 128
_BLOCK_BYTES = 8 * 16
_HOST_SLOTS = 64
_AT_ONCE = 6
_LIMITS = ServiceLimits(
    # what is kept for those that return is bounded, and fills up within the warm-up
    http_hold_s=0.05,
    reap_every_s=0.02,
    replay_ttl_s=0.2,
    max_cold_contexts=16,
)


async def soak_engine(turns, seed, *, trace=False):
    """Turns on the real loop in its thread, with a host tier that is always full."""
    model = _quiet(FakeModel(num_blocks=_BLOCKS, block_size=16, draw=Draw(stop_every=9)))
    config, info = described(_BLOCKS, 1024)
    engine = InProcessEngine(lambda emit: loop_of(model, emit, config, info, _host_tier))
    await engine.start()
    curve = Curve("engine")
    dice = random.Random(seed)
    users = [engine_clients.EngineClient(engine, dice.random()) for _ in range(_AT_ONCE)]
    try:

        async def to(until):
            await engine_clients.talk(users, until)
            return await _at_rest(engine)

        await _sampled(curve, turns, to, trace=trace)
    finally:
        await engine.stop()
    return curve


async def soak_stack(url, turns, seed, *, trace=False):
    """Turns over real sockets, through the gateway, the sessions, SQL and the engine."""
    curve = Curve("whole stack")
    tally = clients.Tally(turns)
    dice = random.Random(seed)
    async with real_stack(url, service_limits=_LIMITS, draw=Draw(stop_every=12)) as stack:
        _quiet(stack.model)
        users = [
            clients.Client(
                stack.served.ws_url, tally, random.Random(dice.random()), max_output_tokens=16
            )
            for _ in range(_AT_ONCE)
        ]
        await _all_connections(stack.store)
        tasks = len(asyncio.all_tasks())

        async def to(until):
            await clients.talk(users, until)
            await stack.idle()
            await _quiet_gateway(stack, tasks)
            return await _at_rest(stack.engine)

        await _sampled(curve, turns, to, trace=trace)
    return curve, tally


async def _all_connections(store):
    """Open as many files as the database ever has, which is else left to chance."""
    together = asyncio.Barrier(READERS)
    async with asyncio.TaskGroup() as group:
        for _ in range(READERS):
            group.create_task(store._database.read(lambda _: together.wait()))


def _quiet(model):
    """A fake that keeps no diary of its steps."""
    model.batches = collections.deque(maxlen=1)
    model.copies = collections.deque(maxlen=1)
    return model


async def _sampled(curve, turns, to, *, trace):
    """Run to `SAMPLES` marks and look at each; the second half traced, if it is to be."""
    marks = [turns * step // SAMPLES for step in range(1, SAMPLES + 1)]
    for until in marks[: SAMPLES // 2]:
        curve.samples.append(sample(until, await to(until)))
    with traced(curve) if trace else contextlib.nullcontext():
        for until in marks[SAMPLES // 2 :]:
            curve.samples.append(sample(until, await to(until)))


def _host_tier(device):
    tier = host_tier(_HOST_SLOTS, _BLOCK_BYTES)
    return Tiers([tier], device=device, block_bytes=_BLOCK_BYTES, mover=ThreadMover())


async def _at_rest(engine):
    """The engine's numbers once nobody holds a block; its audit is clean."""
    async with asyncio.timeout(60):
        while (stats := await engine.ask(GetStats())).active_blocks:  # noqa: ASYNC110 -- asks a thread
            await asyncio.sleep(0.005)
    audit = await engine.ask(GetAudit())
    assert audit.violations == []
    return stats


async def _quiet_gateway(stack, tasks):
    """No socket, no turn, no task of one, and nothing kept for those that might return."""
    service, connections = stack.served.service, stack.served.gateway.connections
    async with asyncio.timeout(60):
        while (  # noqa: ASYNC110 -- what is awaited has no event of its own
            len(asyncio.all_tasks()) > tasks
            or connections.open_count
            or len(service._runner.replays)
            or service._runner.bound_turns()
        ):
            await asyncio.sleep(0.01)
