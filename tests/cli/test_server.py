import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sessiond.api.limits import GatewayLimits
from sessiond.cli.server import PortTakenError, ServerHooks, bind, serve_until_signal, url_of


class SmallApp:
    """Echoes frames; drains as the gateway does: refuses, waits for `work_done`, closes 1012."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.work_done = asyncio.Event()
        self.leave = asyncio.Event()
        self.stopped = False

    async def drain(self) -> None:
        self.draining.set()
        await self.work_done.wait()
        self.leave.set()

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.stopped = True
            await send({"type": "lifespan.shutdown.complete"})
        elif self.draining.is_set():
            start = {"type": "websocket.http.response.start", "status": 503, "headers": []}
            await send(start)
            await send({"type": "websocket.http.response.body", "body": b"draining"})
        else:
            await send({"type": "websocket.accept"})
            reader = asyncio.create_task(self._echo(receive, send))
            await self.leave.wait()
            await send({"type": "websocket.close", "code": 1012})
            await asyncio.gather(reader, return_exceptions=True)

    @staticmethod
    async def _echo(receive, send) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            if message["type"] == "websocket.receive":
                await send({"type": "websocket.send", "text": message["text"]})


@contextlib.asynccontextmanager
async def running(app: SmallApp, *, drain_limit_s: float = 60.0):
    listening, told = asyncio.Event(), []
    listener = bind("127.0.0.1", 0)
    hooks = ServerHooks(
        on_listening=listening.set,
        on_drain=lambda: told.append("drain"),
        drain=app.drain,
        drain_limit_s=drain_limit_s,
    )
    server = asyncio.create_task(serve_until_signal(app, GatewayLimits(), listener, hooks))
    url = url_of(listener).replace("http", "ws", 1)
    async with asyncio.timeout(60):
        await listening.wait()
        yield url, server, told


async def test_a_signal_lets_work_end_and_refuses_new_sockets_meanwhile():
    app = SmallApp()
    async with running(app) as (url, server, told), connect(url, proxy=None) as client:
        await client.send("before")
        assert await client.recv() == "before"
        os.kill(os.getpid(), signal.SIGTERM)
        await app.draining.wait()
        assert told == ["drain"]
        await client.send("during")
        assert await client.recv() == "during"
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, proxy=None)
        assert refused.value.response.status_code == 503
        app.work_done.set()
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert client.close_code == 1012
        await server
        assert app.stopped


async def test_a_second_signal_cuts_the_drain_short():
    app = SmallApp()
    async with running(app) as (url, server, _), connect(url, proxy=None) as client:
        os.kill(os.getpid(), signal.SIGINT)
        await app.draining.wait()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert client.close_code == 1012  # uvicorn's own
        app.leave.set()
        await server


async def test_a_drain_that_hangs_is_cut_at_its_limit(caplog):
    app = SmallApp()
    async with running(app, drain_limit_s=0.01) as (url, server, _):
        async with connect(url, proxy=None) as client:
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert client.close_code == 1012  # uvicorn's own
            app.leave.set()
        await server
    assert "the drain was cancelled" in caplog.text


async def test_a_drain_that_fails_ends_the_server_all_the_same(caplog):
    class Broken(SmallApp):
        async def drain(self) -> None:
            raise ValueError("as the test wants it")

    app = Broken()
    async with running(app) as (_, server, _):
        os.kill(os.getpid(), signal.SIGTERM)
        await server
    assert app.stopped
    assert "the drain failed" in caplog.text


async def test_signal_handlers_are_given_back():
    before = signal.getsignal(signal.SIGTERM)
    app = SmallApp()
    app.work_done.set()
    async with running(app) as (_, server, _):
        os.kill(os.getpid(), signal.SIGTERM)
        await server
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_taken_port_is_told_before_anything_else_happens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"127.0.0.1:{port}.*in use.*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_told_not_to_try_another_port(host):
    with pytest.raises(PortTakenError, match=r"--host must be an address of this machine$"):
        bind(host, 0)


def test_the_url_names_the_port_that_was_taken():
    with bind("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_small_answers_are_not_held_back():
    """Nagle's algorithm would hold a body back until the client's delayed ACK of its headers."""
    seen = asyncio.Queue()
    listener = bind("127.0.0.1", 0)
    server = await asyncio.start_server(lambda _, writer: seen.put(writer), sock=listener)
    async with server:
        _, client = await asyncio.open_connection(*listener.getsockname())
        writer = await asyncio.wait_for(seen.get(), 60)
        taken = writer.get_extra_info("socket")
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for one in (client, writer):
            one.close()
            await one.wait_closed()


@pytest.mark.skipif(sys.platform != "linux", reason="an option of Linux")
def test_a_peer_that_reads_no_answer_does_not_keep_its_connection():
    with bind("127.0.0.1", 0, gone_after_s=0.2) as listener, socket.socket() as peer:
        listener.listen()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(listener.getsockname())
        accepted, _ = listener.accept()
        accepted.settimeout(60)  # of Python's, which has no number
        with accepted, pytest.raises(TimeoutError) as told:
            accepted.sendall(bytes(2**26))
        assert told.value.errno == errno.ETIMEDOUT
