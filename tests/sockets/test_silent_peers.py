"""Peers that say nothing, say half of something, or read nothing while they leave."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from sessiond.api.websocket_protocol import GatewayWebSocketProtocol
from tests.api.scripted import ScriptedService, reply
from tests.harness.serving import gateway_of, serving
from tests.sockets.raw_peer import close, frame, raw_peer

HEAD = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\n"


@asynccontextmanager
async def connected(served):
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ended(reader):
    """Whether the server drops the connection without a word."""
    try:
        return await asyncio.wait_for(reader.read(), 60) == b""
    except ConnectionError:
        return True


async def nobody_is_left(served):
    async with asyncio.timeout(60):
        while served.server.server_state.connections:  # noqa: ASYNC110 -- uvicorn tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /health/live HT",
        b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgr",
        HEAD + b"Content-Length: 1000\r\n\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    ],
    ids=["nothing", "half a line", "half a handshake", "half a body", "half a chunk"],
)
async def test_a_request_that_never_comes_whole_keeps_no_connection(said):
    gateway = gateway_of(ScriptedService(lambda _: reply("x")), request_timeout_s=0.2)
    async with serving(gateway) as served, connected(served) as (reader, writer):
        writer.write(said)
        assert await ended(reader)
        await nobody_is_left(served)


async def test_nor_does_one_behind_a_request_that_did():
    gateway = gateway_of(ScriptedService(lambda _: reply("x")), request_timeout_s=0.2)
    async with serving(gateway) as served, connected(served) as (reader, writer):
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"}"), 60)
        writer.write(b"GET /health/live HTTP/1.1\r\n")
        assert await ended(reader)
        await nobody_is_left(served)


async def test_a_request_that_comes_byte_by_byte_is_bounded_as_a_whole():
    gateway = gateway_of(ScriptedService(lambda _: reply("x")), request_timeout_s=0.3)
    async with serving(gateway) as served, connected(served) as (reader, writer):
        writer.write(b"GET /health/live HTTP/1.1\r\n")
        end = asyncio.create_task(ended(reader))
        while not end.done():
            writer.write(b"X-More: 1\r\n")
            await asyncio.wait({end}, timeout=0.05)
        assert end.result()


async def test_a_request_that_was_whole_may_take_longer_than_that():
    gate = asyncio.Event()
    service = ScriptedService(lambda _: [gate, *reply("x")])
    gateway = gateway_of(service, request_timeout_s=0.2)
    async with serving(gateway) as served, connected(served) as (reader, writer):
        body = b'{"input": "hi"}'
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        async with connected(served) as (silent, _):  # as old as the request: its time is up
            assert await ended(silent)
        gate.set()
        assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 200")


async def test_a_socket_outlives_the_time_for_its_handshake():
    gateway = gateway_of(ScriptedService(lambda _: reply("x")), request_timeout_s=0.2)
    async with serving(gateway) as served, raw_peer(served.ws_url) as peer:
        async with connected(served) as (silent, _):
            assert await ended(silent)
        assert await peer.is_answered()


@pytest.mark.parametrize(
    "last", [close(1000), frame(1, b"x", rsv=7), frame(1, b"\xff")], ids=["1000", "1002", "1007"]
)
async def test_who_leaves_and_reads_nothing_is_forgotten_soon(last, monkeypatch):
    monkeypatch.setattr(GatewayWebSocketProtocol, "close_within_s", 0.1)
    endless = reply(*(["x" * 10_000] * 2000))
    service = ScriptedService(lambda _: endless)
    async with (
        serving(gateway_of(service)) as served,
        raw_peer(served.ws_url, receive_buffer=4096) as peer,
    ):
        peer.writer.transport.pause_reading()
        peer.send(frame(1, b'{"type": "response.create", "input": "hi"}'))
        (connection,) = served.server.server_state.connections
        while connection.writable.is_set():  # noqa: ASYNC110 -- uvicorn tells nobody
            await asyncio.sleep(0.01)
        peer.send(last)
        await asyncio.wait_for(service.detached.get(), 60)
        await nobody_is_left(served)
