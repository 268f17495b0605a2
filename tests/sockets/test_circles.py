"""What a client leaves behind goes with its last reference, not with a collection of garbage.

Collections look at what is new (`engine/system/heap.py`): a socket has lived long when it ends.
"""

import asyncio
import contextlib
import gc
import threading
import weakref

import httpx
import pytest
from websockets.frames import Opcode

from sessiond.app import drain
from tests.api.frames import create, hear, hear_turn, say
from tests.fakes.fake_model import Draw
from tests.sockets.raw_peer import close, frame, raw_peer

PATH = "/v1/responses"


@pytest.fixture(autouse=True)
def no_collections():
    """Nor of what other tests have left."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def gone(*refs):
    """Wait until nothing refers to what the server had."""
    async with asyncio.timeout(60):
        while any(ref() is not None for ref in refs):  # noqa: ASYNC110 -- frees tell nobody
            await asyncio.sleep(0.005)


@contextlib.contextmanager
def held(model):
    """No step of the model ends before the block does."""
    gate = model.gate = threading.Event()
    try:
        yield
    finally:
        gate.set()


def connections(served):
    refs = [weakref.ref(one) for one in served.server.server_state.connections]
    assert refs
    return refs


async def turns(served, count):
    """Of those that run, once so many do."""
    runner = served.service.runner
    async with asyncio.timeout(60):
        while len(bound := [one for one in runner.bound_turns() if one.begun]) < count:  # noqa: ASYNC110 -- of no event
            await asyncio.sleep(0.005)
    return [weakref.ref(one) for one in bound]


LAST_WORDS = {
    "nothing": [],
    "close": [close(1000)],
    "a frame that is answered": [frame(Opcode.TEXT, b"{}")],
    "a reserved opcode": [frame(3)],
    "no UTF-8": [frame(Opcode.TEXT, b"\xff")],
    "half a message": [frame(Opcode.TEXT, b"{", fin=False)],
    "half a frame": [frame(Opcode.TEXT, b"{", length=100)],
    "more than is allowed": [frame(Opcode.TEXT, b"{" * 2000)],
}


@pytest.mark.parametrize("words", LAST_WORDS.values(), ids=LAST_WORDS)
async def test_a_socket_of_whatever_end(stack, words):
    async with stack(max_frame_bytes=1000) as running:
        async with raw_peer(running.served.ws_url) as peer:
            assert await peer.is_answered()
            refs = connections(running.served)
            peer.send(*words)
        await gone(*refs)


@pytest.mark.parametrize("words", LAST_WORDS.values(), ids=LAST_WORDS)
async def test_a_socket_of_whatever_end_amid_a_reply(stack, words, caplog):
    endless = Draw(stop_every=0)
    async with stack(max_frame_bytes=1000, draw=endless) as running:
        async with raw_peer(running.served.ws_url) as peer:
            peer.send(frame(Opcode.TEXT, b'{"type": "response.create", "input": "a"}'))
            for _ in range(6):
                await peer.next()
            refs = connections(running.served)
            peer.send(*words)
        await gone(*refs)
    assert "internal error" not in caplog.text


async def test_a_socket_that_leaves_amid_its_turns_and_the_turns(stack):
    async with stack() as running:
        async with running.served.connect() as ws:
            with held(running.model):
                await create(ws, input="a", stream_id="a")
                await create(ws, input="b", stream_id="b")
                refs = connections(running.served) + await turns(running.served, 2)
                ws.transport.abort()
        await gone(*refs)


async def test_a_turn_whose_socket_stays(stack):
    async with stack() as running, running.served.connect() as ws:
        with held(running.model):
            await create(ws, input="a")
            refs = await turns(running.served, 1)
        await hear_turn(ws)
        await gone(*refs)


async def test_a_socket_that_is_closed_for_a_restart(stack):
    async with stack() as running, running.served.connect() as ws:
        await say(ws, type="session.close", session="conv_9")
        await hear(ws)
        refs = connections(running.served)
        await drain(running.served.gateway)
        await ws.wait_closed()
        await gone(*refs)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_over_http(stack, stream):
    async with stack() as running:
        async with httpx.AsyncClient(base_url=running.served.http_url) as client:
            answer = await client.post(PATH, json={"input": "a", "stream": stream})
            assert answer.status_code == 200
            answer = await client.post(PATH, json={"input": 1})
            assert answer.status_code == 400
            refs = connections(running.served)
        await gone(*refs)


async def test_a_stream_over_http_that_is_left(stack):
    async with stack() as running:
        with held(running.model):
            async with (
                httpx.AsyncClient(base_url=running.served.http_url) as client,
                client.stream("POST", PATH, json={"input": "a", "stream": True}) as answer,
            ):
                await anext(answer.aiter_lines())
                refs = connections(running.served) + await turns(running.served, 1)
        await gone(*refs)
