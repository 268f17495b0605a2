"""Short words for tests of quotas."""

import asyncio

import pytest

from sessiond.errors import RequestError
from sessiond.quota import windows_at
from tests.harness.service import ANN, ByteFormat

PREFIX = len(ByteFormat().open(None))


async def limit(world, user_id="ann", **limits):
    await world.store.quotas.set_quota(user_id, limits, world.clock())
    world.clock.advance(1.1)  # what was remembered is forgotten


async def use_of(world, user_id="ann"):
    return (await world.store.quotas.account(user_id)).use


async def use_when(world, condition):
    """What is taken as soon as it is so; timers of the service bring it about."""
    async with asyncio.timeout(60):
        while not condition(use := await use_of(world)):  # noqa: ASYNC110 -- no event of its own
            await asyncio.sleep(0.001)
    return use


async def states(world, forks):
    views = [await world.service.inspector.session(ANN, session) for session, _ in forks]
    return [view.state for view in views]


async def refusal_of(world, request, **where):
    with pytest.raises(RequestError) as refused:
        await world.begin(request, **where)
    return refused.value


def to_minute(world, second):
    """Move the clock to this second of the next minute."""
    minute = windows_at(world.clock.now_s).minute + 60
    world.clock.now_s = minute + second
