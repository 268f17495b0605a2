"""Serves an application on a free port of loopback, in the test's own event loop."""

import asyncio
import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass

from websockets.asyncio.client import connect

from sessiond.api.audit_watch import AuditWatch
from sessiond.api.auth import NoAuth
from sessiond.api.connections import Connections
from sessiond.api.limits import GatewayLimits
from sessiond.api.parts import Gateway
from sessiond.api.server import GatewayServer, uvicorn_config
from sessiond.app import build_app, drain
from sessiond.cli.server import bind
from sessiond.observability.metrics import Metrics
from tests.api.scripted import ScriptedEngine


class ReadyServer(GatewayServer):
    """Tells when it listens; leaves the signals to the tests; stops without a tick's delay."""

    def __init__(self, config):
        super().__init__(config)
        self.ready = asyncio.Event()
        self.exit = asyncio.Event()

    async def startup(self, sockets=None):
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self):
        await self.exit.wait()

    async def serve(self, sockets=None):
        await self._serve(sockets)


@dataclass
class Served:
    """A running server and the parts behind it."""

    port: int
    gateway: Gateway
    server: ReadyServer

    @property
    def service(self):
        return self.gateway.sessions

    @property
    def http_url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws_url(self):
        return f"ws://127.0.0.1:{self.port}/v1/responses"

    def connect(self, **options):
        """Open a raw socket to the server, without a proxy."""
        return connect(self.ws_url, proxy=None, **{"compression": None, **options})


def gateway_of(service, engine=None, **limits):
    """The gateway's parts around a service."""
    numbers = itertools.count(1)
    engine = engine or ScriptedEngine()
    return Gateway(
        sessions=service,
        engine=engine,
        auth=NoAuth(),
        limits=GatewayLimits(**limits),
        connections=Connections(),
        metrics=Metrics(),
        audit_watch=AuditWatch(engine),
        clock=lambda: 1_700_000_000.0,
        new_id=lambda prefix: f"{prefix}_{next(numbers)}",
    )


@asynccontextmanager
async def serving(gateway, *, allowed_hosts=(), allowed_origins=(), traced=False):
    """Serve until the block ends."""
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    app = build_app(
        gateway, allowed_hosts=allowed_hosts, allowed_origins=allowed_origins, traced=traced
    )
    server = ReadyServer(uvicorn_config(app, gateway.limits))
    task = asyncio.create_task(server.serve([listener]))
    ready = asyncio.create_task(server.ready.wait())
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield Served(port, gateway, server)
        await drain(gateway)
    finally:
        ready.cancel()
        server.exit.set()
        await task
        # a transport that is closed is gone one turn of the loop later, which may be its last
        async with asyncio.timeout(60):
            while server.server_state.connections:  # noqa: ASYNC110 -- they have no event
                await asyncio.sleep(0.001)
