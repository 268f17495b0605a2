"""Connections: none is lost, none is held longer than its transaction, whatever tasks do."""

import asyncio
from random import Random

import pytest

from sessiond.store.store import Store
from tests.databases import PATIENCE_S
from tests.store.rows import kept, prompt, session, turn

CANCELS = 1000


@pytest.fixture
async def small(url):
    """A store with the fewest connections."""
    store = Store(url, connections=1, timeout_s=PATIENCE_S)
    await store.begin_turn(turn(), session=session(), prompt=prompt())
    await store.commit_turn(kept())
    yield store
    await store.close()


@pytest.mark.second
async def test_a_thousand_cancelled_tasks_lose_no_connection(small):
    random = Random(1)
    reads_and_writes = 0

    async def work(number):
        nonlocal reads_and_writes
        if number % 2:
            await small.set_metadata("ann", "conv_1", {"n": str(number)})
        else:
            assert await small.session_detail("ann", "conv_1") is not None
        reads_and_writes += 1

    for first in range(0, CANCELS, 20):
        tasks = [asyncio.create_task(work(first + number)) for number in range(21)]
        for task in tasks[:-1]:
            for _ in range(random.randrange(6)):
                await asyncio.sleep(0)
            if random.random() < 0.2:
                await asyncio.sleep(random.choice((0.001, 0.01)))
            if task is tasks[-1]:
                await asyncio.wait([task])  # not cut, however busy the machine is
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ended} <= {asyncio.CancelledError, type(None)}
        assert small.connections_in_use == 0
    # those that were cut before they began, and the last of each batch, however busy the machine
    assert CANCELS // 20 <= reads_and_writes < CANCELS
    assert await small.set_metadata("ann", "conv_1", {"n": "last"})
    assert (await small.find_session("ann", "conv_1")).metadata == {"n": "last"}


async def test_tasks_beyond_the_connections_wait_for_one(small):
    found = await asyncio.gather(
        *(small.find_session("ann", "conv_1") for _ in range(50)),
        *(small.set_metadata("ann", "conv_1", {"n": str(number)}) for number in range(50)),
    )
    assert all(found)
    assert small.connections_in_use == 0


async def test_a_reader_sees_one_moment_in_all_its_questions(url, monkeypatch):
    """What a session's view tells is of one piece, though its turns are asked for one by one."""
    store, other = (Store(url, timeout_s=PATIENCE_S) for _ in range(2))
    await store.begin_turn(turn(), session=session(), prompt=prompt())
    await store.commit_turn(kept())
    from sessiond.store import turns

    chain = turns.chain

    async def late(*args):
        monkeypatch.undo()
        await other.delete_turn("ann", "resp_1", 9.0)
        return await chain(*args)

    monkeypatch.setattr(turns, "chain", late)
    detail = await store.session_detail("ann", "conv_1")
    assert detail.context[0].deleted_at is None
    assert (await store.find_turn("ann", "resp_1")).deleted_at == 9.0
    await store.close()
    await other.close()
