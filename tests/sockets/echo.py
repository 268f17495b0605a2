"""An echo that exists in tests only, served just as the gateway is: same protocol, same limits."""

import asyncio
from contextlib import asynccontextmanager

from sessiond.api.limits import GatewayLimits
from sessiond.api.server import uvicorn_config
from sessiond.cli.server import bind, url_of
from tests.harness.serving import ReadyServer


async def echo(scope, receive, send):
    """Send each message back as it came, text or bytes."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        kind = "text" if "text" in message else "bytes"
        await send({"type": "websocket.send", kind: message[kind]})


@asynccontextmanager
async def echoing(**limits):
    """Serve the echo until the block ends; gives its URL."""
    listener = bind("127.0.0.1", 0)
    server = ReadyServer(uvicorn_config(echo, GatewayLimits(**limits)))
    task = asyncio.create_task(server.serve([listener]))
    await server.ready.wait()
    try:
        yield f"{url_of(listener).replace('http', 'ws', 1)}/"
    finally:
        server.exit.set()
        await task
