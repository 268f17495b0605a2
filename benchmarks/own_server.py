"""A server in this process, with an engine of our own making: what is inside can be looked at."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from engine.ipc.worker_client import WorkerEngine
from engine.system.heap import ShortPauses
from sessiond.assembly import build_server, load_text_format
from sessiond.cli.server import ServerHooks, bind, serve_until_signal, url_of
from sessiond.settings import Settings

PATIENCE_S = 30.0


@contextlib.asynccontextmanager
async def own_server(settings: Settings, model: Path, engine: WorkerEngine) -> AsyncIterator[str]:
    """Serve for the time of a `with` block, at the URL that it is given.

    As `sessiond serve` does, on a database that is there. In the main thread: the end is a signal.
    """
    ShortPauses().begin()
    await engine.start()
    try:
        server = build_server(settings, engine, load_text_format(model))
        with contextlib.closing(bind("127.0.0.1", 0)) as listener:
            listening = asyncio.Event()
            hooks = ServerHooks(
                on_listening=listening.set,
                on_drain=lambda: None,
                drain=server.drain,
                drain_limit_s=PATIENCE_S,
            )
            serving = asyncio.create_task(
                serve_until_signal(server.app, server.gateway.limits, listener, hooks)
            )
            await listening.wait()
            try:
                yield url_of(listener)
            finally:
                signal.raise_signal(signal.SIGTERM)
                await serving
                await server.close()
    finally:
        await engine.stop()
