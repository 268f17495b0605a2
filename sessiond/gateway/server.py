"""How uvicorn serves the gateway: its settings, and a shutdown that lets turns end first."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from sessiond.gateway.limits import GatewayLimits
from sessiond.gateway.websocket_protocol import GatewayWebSocketProtocol

GRACEFUL_SHUTDOWN_S = 5


def uvicorn_config(app: ASGIApp, *, host: str, port: int, limits: GatewayLimits) -> uvicorn.Config:
    """Set what the contract promises: frame limit, pings, no compression (it costs 40 KiB each)."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        ws=GatewayWebSocketProtocol,
        ws_max_size=limits.max_frame_bytes,
        ws_ping_interval=limits.ping_interval_s,
        ws_ping_timeout=limits.ping_timeout_s,
        ws_per_message_deflate=False,
        http="h11",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
    )


class DrainingServer(uvicorn.Server):
    """On SIGTERM: refuse new work, let turns end, close sockets 1012, then stop.

    uvicorn alone would close every socket at once, amid its turn. A second signal stops the wait.
    """

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._drain = drain
        self._hurry = asyncio.Event()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal; the second one hurries."""
        if self.should_exit:
            self._hurry.set()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain while still listening, so that newcomers are told, then shut down."""
        drain = asyncio.ensure_future(self._drain())
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, hurry):
            task.cancel()
        await asyncio.gather(drain, hurry, return_exceptions=True)
        await super().shutdown(sockets)
