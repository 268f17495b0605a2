"""Who is told to close, and when."""

import asyncio

from sessiond.api.connections import Connections


async def test_all_are_told_to_close_and_waited_for():
    connections = Connections()
    with connections.joined() as leave:
        closing = asyncio.create_task(connections.close_all())
        await leave.wait()
        assert not closing.done()
    async with asyncio.timeout(60):
        await closing


async def test_one_that_was_let_in_just_before_the_drain_is_told_too():
    connections = Connections()
    connections.refuse_if_draining()
    connections.begin_drain()
    with connections.joined() as first:
        closing = asyncio.create_task(connections.close_all())
        await first.wait()
        with connections.joined() as late:
            assert late.is_set()
    async with asyncio.timeout(60):
        await closing
