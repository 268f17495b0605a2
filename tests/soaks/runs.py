"""The soaks: on the engine alone, and on the whole stack over sockets. Only the model is a fake."""

import random

from engine.kv.tiers.mover import ThreadMover
from engine.kv.tiers.tiers import Tiers
from tests.harness.engine import Rig
from tests.soaks import clients, engine_clients
from tests.soaks.curve import Curve, sample
from tests.soaks.served import at_rest, quiet, served_stack
from tests.soaks.tracing import Tracing
from tests.tiers.support import host_tier

SAMPLES = 40
_BLOCKS = 128
_BLOCK_BYTES = 8 * 16
_HOST_SLOTS = 64
_AT_ONCE = 6


async def soak_engine(turns, seed, *, trace=False):
    """Turns on the real loop in its thread, with a host tier that is always full."""
    rig = Rig(_BLOCKS, tiers=_host_tier, max_num_seqs=8)
    quiet(rig.model)
    engine = rig.engine
    await engine.start()
    curve = Curve("engine")
    dice = random.Random(seed)
    users = [engine_clients.EngineClient(engine, dice.random()) for _ in range(_AT_ONCE)]
    try:

        async def to(until):
            await engine_clients.talk(users, until)
            return sample(until, await at_rest(engine))

        await _sampled(curve, turns, to, Tracing() if trace else None)
    finally:
        await engine.stop()
    return curve


async def soak_stack(url, turns, seed, *, trace=False):
    """Turns over real sockets, through the gateway, the sessions, SQL and the engine.

    All of them are in a process of their own, and the clients in this one.
    """
    curve = Curve("whole stack")
    counts = clients.Counts(turns)
    dice = random.Random(seed)
    async with served_stack(url) as stack:
        users = [
            clients.Client(stack.ws_url, counts, random.Random(dice.random()), max_output_tokens=16)
            for _ in range(_AT_ONCE)
        ]

        async def to(until):
            await clients.talk(users, until)
            return await stack.sample(until)

        await _sampled(curve, turns, to, stack if trace else None)
    return curve, counts


async def _sampled(curve, turns, to, tracing):
    """Run to `SAMPLES` marks and look at each; the second half traced, if it is to be."""
    marks = [turns * step // SAMPLES for step in range(1, SAMPLES + 1)]
    for until in marks[: SAMPLES // 2]:
        curve.samples.append(await to(until))
    if tracing:
        await tracing.start()
    for until in marks[SAMPLES // 2 :]:
        curve.samples.append(await to(until))
    if tracing:
        curve.allocations = await tracing.found()


def _host_tier(device):
    tier = host_tier(_HOST_SLOTS, _BLOCK_BYTES)
    return Tiers([tier], device=device, block_bytes=_BLOCK_BYTES, mover=ThreadMover())
